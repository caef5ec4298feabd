"""Starts and stops NVIDIA's tritonserver on a model repository; its ports and options."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from types import FrameType
from typing import TextIO
from uuid import uuid4

import httpx

from pipework.closeable import Closeable
from pipework.errors import ConfigError, NotReadyError, PipeError
from pipework.serve.http.shutdown import exit_on_signal, signal_handlers
from pipework.serve.models.registry import Change, Entry, State
from pipework.serve.sockets import address_text, bound_socket
from pipework.serve.triton.installation import Installation, check_echo, write_echo

METRICS_OFFSET = 2  # Triton's default ports are 8000, 8001 and 8002
# Restricted because these APIs allow more than inference: clients could register the shared memory
# of the python backend itself (CVE-2025-23319, CVE-2025-23320, CVE-2025-23334).
RESTRICTED = ("shared-memory", "trace", "logging")
ACCESS_HEADER = "pipework-launcher"
START_S, POLL_S, LATE_S = 120.0, 0.05, 3.0
TAIL = 20  # lines of a log that are shown
LOG_BYTES = 8 * 2**20  # a larger log is truncated
PR_SET_PDEATHSIG = 1  # option of Linux's prctl
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where the python backend passes tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """Hosts and ports of a tritonserver; port 0 means any free port."""

    host: str = "127.0.0.1"
    grpc_host: str = "127.0.0.1"
    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def chosen(self) -> "Ports":
        """Return a copy with a free port in place of each 0.

        If the HTTP port is not 0, the metrics port is that plus 2, if free.

        Raises:
            ConfigError: a port is already in use.
        """
        with ExitStack() as held:  # keeps all ports until the last is chosen, so that they differ
            http = _bound(self.host, self.http, "--port", held)
            grpc = _bound(self.grpc_host, self.grpc, "--grpc-port", held)
            metrics = self.metrics
            if self.http and not metrics:
                with suppress(ConfigError):
                    metrics = _bound(self.host, self.http + METRICS_OFFSET, "--port", held)
            if metrics != self.http + METRICS_OFFSET:
                metrics = _bound(self.host, metrics, "--port", held)
        return replace(self, http=http, grpc=grpc, metrics=metrics)

    def options(self) -> list[str]:
        """Return the command line options of tritonserver."""
        return [
            *(f"--http-address={self.host}", f"--http-port={self.http}"),
            *(f"--grpc-address={self.grpc_host}", f"--grpc-port={self.grpc}"),
            *(f"--metrics-address={self.host}", f"--metrics-port={self.metrics}"),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Behaviour and access rules of a tritonserver.

    Attributes:
        control: whether clients may load and unload models and read the repository index; Triton
            restricts these together.
        strict: whether the server fails if one version cannot be loaded.
        exit_s: seconds for running requests to finish after a stop signal.
        secret: value of the header that opens the restricted APIs for the launcher. Other users of
            the same machine can read it in the command line.
    """

    control: bool = False
    strict: bool = True
    exit_s: int = 15
    secret: str = field(default_factory=lambda: uuid4().hex, repr=False)

    def options(self) -> list[str]:
        """Return the command line options of tritonserver."""
        # Explicit model control: with polling, tritonserver retries failed versions at each poll,
        # and may hang if it is stopped during that (seen with 2.51).
        restricted = RESTRICTED if self.control else ("model-repository", *RESTRICTED)
        rule = f"{','.join(restricted)}:{ACCESS_HEADER}={self.secret}"
        return [
            *("--model-control-mode=explicit", "--load-model=*"),
            *(f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"),
            *([] if self.strict else ["--exit-on-error=false", "--strict-readiness=false"]),
            f"--exit-timeout-secs={self.exit_s}",
        ]


def _bound(host: str, port: int, option: str, held: ExitStack) -> int:
    return int(held.enter_context(bound_socket(host, port, option)).getsockname()[1])


class TritonServer(Closeable):
    """A running tritonserver with a loaded repository and a checked Python backend."""

    def __init__(
        self,
        repository: Path,
        ports: Ports | None = None,
        options: ServerOptions | None = None,
        *,
        installation: Installation | None = None,
        start_s: float = START_S,
    ) -> None:
        """Start tritonserver and wait until the models of the repository are loaded.

        Raises:
            ConfigError: a port is already in use.
            MissingDependencyError: tritonserver is not installed, or it was built for another
                version of NumPy.
            NotReadyError: it did not start; the message has the reason, the details its log.
        """
        installation = installation or Installation.find()
        ports, self._options = (ports or Ports()).chosen(), options or ServerOptions()
        self.url = f"http://{address_text(ports.host, ports.http)}"
        self.grpc = address_text(ports.grpc_host, ports.grpc)
        self.metrics = f"http://{address_text(ports.host, ports.metrics)}/metrics"
        self._name, self._ended = f"pipework-triton-{uuid4().hex}", False
        self._folder = TemporaryDirectory(prefix=self._name)
        self._log = Path(self._folder.name) / "triton.log"
        echo = write_echo(Path(self._folder.name) / "models")
        command = [str(installation.binary), *ports.options(), *self._options.options()]
        command += [f"--model-repository={repository}", f"--model-repository={echo.parent}"]
        command.append("--disable-auto-complete-config")
        command.append(f"--backend-config=python,shm-region-prefix-name={self._name}")
        if installation.backends is not None:
            command.append(f"--backend-directory={installation.backends}")
        with self._log.open("a") as log:
            self._process = _start(command, installation.environment(), log)
        try:
            # The client is closed here: tritonserver waits for open connections when it stops.
            with self._client(start_s) as client:
                self._wait_ready(client, time.monotonic() + start_s)
                check_echo(client, echo)
        except BaseException:
            self._end()  # it has no requests yet
            raise

    def index(self) -> list[Entry]:
        """Return the versions that it has tried to load; [] if it does not respond.

        A model without versions is an entry without a version.
        """
        if self._log.stat().st_size > LOG_BYTES:
            os.truncate(self._log, 0)  # the server appends to it
        try:
            with self._client(START_S) as client:
                entries = client.post("/v2/repository/index", json={}).json()
            return [_entry(**entry) for entry in entries]
        except (httpx.HTTPError, ValueError, TypeError):
            return []  # it is stopping

    def change(self, change: Change, model: str) -> None:
        """Load the current versions of a model, or unload it after its accepted requests.

        Old versions are served until the new ones are loaded, or longer if loading fails.
        """
        with suppress(httpx.HTTPError), self._client(START_S) as client:  # it may be stopping
            client.post(f"/v2/repository/models/{model}/{change}", json={})

    def wait(self) -> None:
        """Forward SIGTERM and SIGINT and wait until it exits; a second SIGINT kills it.

        It is also killed after its exit timeout: it may hang if it is stopped while it loads a
        model.

        Raises:
            NotReadyError: it exited unexpectedly; the details are the end of its log.
        """
        signals: list[int] = []
        kill_timer = Timer(self._options.exit_s + LATE_S, self._process.kill)
        kill_timer.daemon = True

        def forward(sign: int, _: FrameType | None) -> None:
            second = signal.SIGINT in signals and sign == signal.SIGINT
            if not signals:
                kill_timer.start()
            signals.append(sign)
            (self._process.kill if second else self._process.terminate)()

        with signal_handlers(forward):
            code = self._process.wait()
        kill_timer.cancel()
        # After a signal the exit code is ignored: connected clients make it exit with an error.
        if not signals:
            log = self._log.read_text(errors="replace")
            status = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            message = f"tritonserver exited unexpectedly, {status}: {reason(log)}"
            tail = "\n".join(log.splitlines()[-TAIL:])
            raise NotReadyError(message, "the end of its log is above this line", tail)

    def close(self) -> None:
        """Finish accepted requests and stop. Closing twice is allowed."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * self._options.exit_s)
        self._end()

    def _client(self, timeout_s: float) -> httpx.Client:
        headers = {ACCESS_HEADER: self._options.secret}  # opens the restricted APIs
        return httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False, headers=headers)

    def _end(self) -> None:
        """Kill all its processes and remove their files and shared memory."""
        if self._ended:
            return
        self._ended = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for region in SHARED_MEMORY.glob(f"{self._name}*"):
            region.unlink(missing_ok=True)
        self._folder.cleanup()

    def _wait_ready(self, client: httpx.Client, end_s: float) -> None:
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                break
            try:
                if client.get("/v2/health/ready").status_code == HTTPStatus.OK:
                    return
            except httpx.HTTPError:
                pass  # it does not listen yet
            time.sleep(POLL_S)
        log = self._log.read_text(errors="replace")
        message = f"tritonserver did not start: {reason(log)}"
        raise NotReadyError(message, "its log is above this line", log)


def reason(log: str) -> str:
    """Return the reason of an exit from a log: a model that failed to load, or the last error."""
    models = re.findall(r'"(failed to load .+? version .+?)(?:\\n|"$)', log, re.MULTILINE)
    errors = re.findall(r"^(?:error: |E\d{4} .*?\] )(.+)$", log, re.MULTILINE)
    return str([*models[:1], *errors[-1:], "no error in its log"][0]).strip('"')


def _entry(name: str, version: str = "", state: str = "UNAVAILABLE", reason: str = "") -> Entry:
    return Entry(name=name, version=version, state=State(state), reason=reason)


def _start(command: list[str], environment: dict[str, str], log: TextIO) -> "subprocess.Popen[str]":
    """Start a process that gets SIGTERM when the calling thread ends, even if killed."""
    libc = ctypes.CDLL(None)
    try:
        # In its own session, so that Ctrl-C reaches only this process, which forwards it once.
        return subprocess.Popen(  # noqa: S603  (found by Installation)
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509  (a system call without locks)
        )
    except OSError as error:
        message = f"{command[0]} cannot be started: {error.strerror}"
        raise NotReadyError(message, "make triton") from error


def main(arguments: Sequence[str]) -> None:
    """Serve a repository until a stop signal; without an argument, check the Python backend."""
    with exit_on_signal(), TemporaryDirectory() as empty:
        repository = Path(arguments[0] if arguments else empty)
        with TritonServer(repository) as server:
            sys.stdout.write(f"tritonserver works; {server.url}, gRPC {server.grpc}\n")
            sys.stdout.flush()
            if arguments:
                server.wait()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PipeError as error:
        lines = (error.details, f"error: {error}", f"hint: {error.hint}")
        sys.exit("\n".join(filter(None, lines)))
