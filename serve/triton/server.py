"""Starts NVIDIA's tritonserver on a model repository."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from types import FrameType
from typing import TextIO
from uuid import uuid4

import httpx

from pipework.closeable import Closing
from pipework.errors import NotReadyError, PipeError
from pipework.serve.http.shutdown import ending_at_once, handled_by
from pipework.serve.models.registry import Entry, State
from pipework.serve.triton.installation import Installation, check_echo, write_echo
from pipework.serve.triton.ports import Doors, Rules

START_S, POLL_S, LATE_S = 120.0, 0.05, 3.0
TAIL = 20  # lines of a log that are shown
LOG_BYTES = 8 * 2**20  # a log that grows beyond is begun anew
PR_SET_PDEATHSIG = 1  # of Linux's prctl
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where the python backend passes tensors)


class TritonServer(Closing):
    """A tritonserver that has loaded a repository, and has echoed what it was told.

    Attributes:
        url: of its HTTP door.
        grpc: host:port of its gRPC door.
        metrics: the URL of its metrics.
    """

    def __init__(
        self,
        repository: Path,
        doors: Doors | None = None,
        rules: Rules | None = None,
        *,
        installation: Installation | None = None,
        start_s: float = START_S,
    ) -> None:
        """Start it and wait until the models of the repository are loaded.

        Raises:
            ConfigError: a port is taken.
            MissingDependencyError: there is no tritonserver, or its Python has a NumPy that it
                was not built for.
            NotReadyError: it did not start; the message holds its reason, the details its log.
        """
        installation = installation or Installation.find()
        doors, self._rules = (doors or Doors()).chosen(), rules or Rules()
        self.url = f"http://{doors.host}:{doors.http}"
        self.grpc = f"{doors.host}:{doors.grpc}"
        self.metrics = f"http://{doors.host}:{doors.metrics}/metrics"
        self._name, self._ended = f"pipework-triton-{uuid4().hex}", False
        self._folder = TemporaryDirectory(prefix=self._name)
        self._log = Path(self._folder.name) / "triton.log"
        echo = write_echo(Path(self._folder.name) / "models")
        command = [str(installation.binary), *doors.options(), *self._rules.options()]
        command += [f"--model-repository={repository}", f"--model-repository={echo.parent}"]
        command.append("--disable-auto-complete-config")
        command.append(f"--backend-config=python,shm-region-prefix-name={self._name}")
        if installation.backends is not None:
            command.append(f"--backend-directory={installation.backends}")
        with self._log.open("a") as log:
            self._process = _start(command, installation.environment(), log)
        try:
            # Closed when done: the server's end would wait for an open connection.
            with self._door(start_s) as door:
                self._wait_ready(door, time.monotonic() + start_s)
                check_echo(door, echo)
        except BaseException:
            self._end()  # it has accepted nothing yet
            raise

    def index(self) -> list[Entry]:
        """Return the versions that it has tried to load; [] where it does not say.

        A model of which no version was found is an entry without a version.
        """
        if self._log.stat().st_size > LOG_BYTES:
            os.truncate(self._log, 0)  # the server appends to it
        try:
            with self._door(START_S) as door:
                found = door.post("/v2/repository/index", json={}).json()
            return [_entry(**one) for one in found]
        except (httpx.HTTPError, ValueError, TypeError):
            return []  # it is ending

    def load(self, model: str) -> bool:
        """Load the versions of a model that are in the repository now; return whether all are.

        Versions that were loaded serve on until the new ones do, or if those fail.
        """
        return self._control(model, "load")

    def unload(self, model: str) -> bool:
        """Let a model finish what it accepted, and take it away; return whether that was done."""
        return self._control(model, "unload")

    def _control(self, model: str, verb: str) -> bool:
        try:
            with self._door(START_S) as door:
                done = door.post(f"/v2/repository/models/{model}/{verb}", json={})
        except httpx.HTTPError:
            return False  # it is ending
        return done.status_code == HTTPStatus.OK

    def wait(self) -> None:
        """Pass SIGTERM and SIGINT on, and wait until it ends; a second SIGINT kills it.

        So does the end of the time that it has: it may hang where it is told to stop while it
        loads a model.

        Raises:
            NotReadyError: it ended by itself; the details are the end of its log.
        """
        told: list[int] = []
        late = Timer(self._rules.exit_s + LATE_S, self._process.kill)
        late.daemon = True

        def pass_on(sign: int, _: FrameType | None) -> None:
            again = signal.SIGINT in told and sign == signal.SIGINT
            if not told:
                late.start()
            told.append(sign)
            (self._process.kill if again else self._process.terminate)()

        with handled_by(pass_on):
            code = self._process.wait()
        late.cancel()
        # A client that stays connected makes it wait and call that an error.
        if not told:
            log = self._log.read_text(errors="replace")
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            message = f"tritonserver ended by itself, {how}: {reason(log)}"
            tail = "\n".join(log.splitlines()[-TAIL:])
            raise NotReadyError(message, "the end of its log stands above this line", tail)

    def close(self) -> None:
        """Let it finish what it accepted, and end it. Closing twice is allowed."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * self._rules.exit_s)
        self._end()

    def _door(self, timeout_s: float) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, timeout=timeout_s, trust_env=False, headers=self._rules.headers()
        )

    def _end(self) -> None:
        """Kill what still runs, the processes of its models too, and remove what they leave."""
        if self._ended:
            return
        self._ended = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for region in SHARED_MEMORY.glob(f"{self._name}*"):
            region.unlink(missing_ok=True)
        self._folder.cleanup()

    def _wait_ready(self, door: httpx.Client, end_s: float) -> None:
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                break
            try:
                if door.get("/v2/health/ready").status_code == HTTPStatus.OK:
                    return
            except httpx.HTTPError:
                pass  # it does not listen yet
            time.sleep(POLL_S)
        log = self._log.read_text(errors="replace")
        message = f"tritonserver did not start: {reason(log)}"
        raise NotReadyError(message, "its log stands above this line", log)


def reason(log: str) -> str:
    """Return what a tritonserver's log says of why it ended: a model, or else its last error."""
    models = re.findall(r'"(failed to load .+? version .+?)(?:\\n|"$)', log, re.MULTILINE)
    errors = re.findall(r"^(?:error: |E\d{4} .*?\] )(.+)$", log, re.MULTILINE)
    return str([*models[:1], *errors[-1:], "it said nothing"][0]).strip('"')


def _entry(name: str, version: str = "", state: str = "UNAVAILABLE", reason: str = "") -> Entry:
    return Entry(name=name, version=version, state=State(state), reason=reason)


def _start(command: list[str], environment: dict[str, str], log: TextIO) -> "subprocess.Popen[str]":
    """Start it so that it is told to stop when the thread that starts it ends, even if killed."""
    libc = ctypes.CDLL(None)
    try:
        # In a session of its own: Ctrl-C reaches this process, which passes it on once.
        return subprocess.Popen(  # noqa: S603  (found by Installation)
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509  (a call of the system, no lock)
        )
    except OSError as error:
        message = f"{command[0]} cannot be started: {error.strerror}"
        raise NotReadyError(message, "make triton") from error


def main(arguments: Sequence[str]) -> None:
    """Serve the repository that is named until told to stop; without one, check the echo."""
    with ending_at_once(), TemporaryDirectory() as empty:
        repository = Path(arguments[0] if arguments else empty)
        with TritonServer(repository) as server:
            sys.stdout.write(f"tritonserver echoes; {server.url}, gRPC {server.grpc}\n")
            sys.stdout.flush()
            if arguments:
                server.wait()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PipeError as error:
        lines = (error.details, f"error: {error}", f"hint: {error.hint}")
        sys.exit("\n".join(filter(None, lines)))
