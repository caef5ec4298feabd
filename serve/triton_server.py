"""Starts NVIDIA's tritonserver on a model repository, and believes it only after an echo.

Its python backend reads tensors through NumPy's binary interface. Built for another version of
NumPy than it finds, it answers with wrong numbers or dies, and says nothing before.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TextIO
from uuid import uuid4

import httpx

from pipework.closing import Closing
from pipework.errors import MissingDependencyError, NotReadyError, PipeError

HOME = Path(__file__).parents[1] / ".triton"  # of `make triton`
START_S, EXIT_S, POLL_S = 120.0, 15, 0.05
SHOWN = 300  # characters of an answer that is no echo
PR_SET_PDEATHSIG = 1  # of Linux's prctl
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where the python backend passes tensors)
ECHO = "pipework_echo"
ECHO_CONFIG = f"""\
name: "{ECHO}"
backend: "python"
input {{ name: "numbers" data_type: TYPE_INT64 dims: [-1] }}
input {{ name: "texts" data_type: TYPE_STRING dims: [-1] }}
output {{ name: "numbers" data_type: TYPE_INT64 dims: [-1] }}
output {{ name: "texts" data_type: TYPE_STRING dims: [-1] }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
ECHO_MODEL = """\
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        return [triton.InferenceResponse([*map(self.copied, r.inputs())]) for r in requests]

    def copied(self, tensor):
        return triton.Tensor(tensor.name(), tensor.as_numpy().copy())
"""
SAID = {
    "inputs": [
        {"name": "numbers", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]},
        {"name": "texts", "datatype": "BYTES", "shape": [2], "data": ["echo", "回声"]},
    ]
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """A tritonserver and where it finds what it needs.

    Attributes:
        binary: the program.
        backends: the folder of its backends, or None for its own default.
        venv: what its python models run in, or None for what the program finds by itself.
    """

    binary: Path
    backends: Path | None = None
    venv: Path | None = None

    @classmethod
    def find(cls, home: Path = HOME) -> "Installation":
        """Return the tritonserver on PATH, or the one that `make triton` installed.

        Raises:
            MissingDependencyError: there is neither.
        """
        on_path = shutil.which("tritonserver")
        if on_path is not None:
            return cls(binary=Path(on_path))
        root = home / "server" / "pytriton" / "tritonserver"
        binary = root / "bin" / "tritonserver"
        if not os.access(binary, os.X_OK):
            message = f"tritonserver is neither on PATH nor in {home}"
            raise MissingDependencyError(message, "make triton")
        return cls(binary=binary, backends=root / "backends", venv=home / "venv")

    def environment(self) -> dict[str, str]:
        """Return the variables to start it with.

        The process that runs a python model takes the environment whose bin comes first on PATH,
        and loads the library of that Python.

        Raises:
            MissingDependencyError: that Python does not run.
        """
        inherited = dict(os.environ)
        if self.venv is None:
            return inherited
        program = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
        command = [str(self.venv / "bin" / "python"), "-c", program]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (our own program)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the Python of Triton's models does not run: {error}"
            raise MissingDependencyError(message, "make triton") from error
        return inherited | {
            "VIRTUAL_ENV": str(self.venv),
            "PATH": os.pathsep.join((str(self.venv / "bin"), os.environ.get("PATH", ""))),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (done.stdout.strip(), os.environ.get("LD_LIBRARY_PATH")))
            ),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Doors:
    """Where a tritonserver listens; a port 0 stands for any free one."""

    host: str = "127.0.0.1"
    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def chosen(self) -> "Doors":
        """Return the same with a free port in place of each 0."""
        wanted = (self.http, self.grpc, self.metrics)
        with ExitStack() as held:  # until all are chosen: a port that is let go may be given again
            ports = [port or _free_port(self.host, held) for port in wanted]
        return Doors(host=self.host, http=ports[0], grpc=ports[1], metrics=ports[2])

    def options(self) -> list[str]:
        """Return them as options of tritonserver."""
        return [
            *(f"--http-address={self.host}", f"--http-port={self.http}"),
            *(f"--grpc-address={self.host}", f"--grpc-port={self.grpc}"),
            *(f"--metrics-address={self.host}", f"--metrics-port={self.metrics}"),
        ]


class TritonServer(Closing):
    """A tritonserver that has loaded a repository, and has echoed what it was told.

    Attributes:
        url: of its HTTP door.
        grpc: host:port of its gRPC door.
    """

    def __init__(
        self,
        repository: Path,
        doors: Doors | None = None,
        *,
        installation: Installation | None = None,
        start_s: float = START_S,
    ) -> None:
        """Start it and wait until every model of the repository is ready.

        Models are loaded and unloaded on request, as the protocol's repository extension says.

        Raises:
            MissingDependencyError: there is no tritonserver, or its Python has a NumPy that it
                was not built for.
            NotReadyError: it did not start; the message holds its reason, the details its log.
        """
        installation = installation or Installation.find()
        doors = (doors or Doors()).chosen()
        self.url = f"http://{doors.host}:{doors.http}"
        self.grpc = f"{doors.host}:{doors.grpc}"
        self._name, self._ended = f"pipework-triton-{uuid4().hex}", False
        self._folder = TemporaryDirectory(prefix=self._name)
        self._log = Path(self._folder.name) / "triton.log"
        echo = _write_echo(Path(self._folder.name) / "models")
        command = [str(installation.binary), *doors.options(), *_options(repository, echo)]
        environment = installation.environment()
        command.append(f"--backend-config=python,shm-region-prefix-name={self._name}")
        if installation.backends is not None:
            command.append(f"--backend-directory={installation.backends}")
        with self._log.open("w") as log:
            self._process = _start(command, environment, log)
        try:
            # Closed when done: the server's end would wait for an open connection.
            with httpx.Client(base_url=self.url, timeout=start_s, trust_env=False) as door:
                self._wait_ready(door, time.monotonic() + start_s)
                _check_echo(door, echo)
        except BaseException:
            self._end()  # it has accepted nothing yet
            raise

    def wait(self) -> int:
        """Pass SIGTERM and SIGINT on, wait until it ends, and return its exit code.

        That is 0 once it was told to stop, though a client that stays connected makes it wait
        EXIT_S and call that an error.
        """
        told: list[int] = []

        def pass_on(sign: int, _: FrameType | None) -> None:
            told.append(sign)
            self._process.terminate()

        before = {sign: signal.signal(sign, pass_on) for sign in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = self._process.wait()
            return 0 if told else code
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)

    def close(self) -> None:
        """Let it finish what it accepted, and end it. Closing twice is allowed."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * EXIT_S)
        self._end()

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


def _options(repository: Path, echo: Path) -> list[str]:
    return [
        f"--model-repository={repository}",
        f"--model-repository={echo.parent}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_S}",
    ]


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


def _write_echo(models: Path) -> Path:
    """Write the repository of the model that echoes, and return the folder of the model."""
    folder = models / ECHO
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ECHO_CONFIG)
    (folder / "1" / "model.py").write_text(ECHO_MODEL)
    return folder


def _check_echo(door: httpx.Client, echo: Path) -> None:
    said = [one["data"] for one in SAID["inputs"]]
    heard = _heard(door)
    if heard != said:
        message = f"tritonserver's python backend does not echo {said}: {heard}"
        hint = "give its Python the NumPy that it was built for, 'numpy<2': make triton"
        raise MissingDependencyError(message, hint)
    shutil.rmtree(echo)


def _heard(door: httpx.Client) -> object:
    """Return what the echo says, or in its place why it says nothing: its process may have died."""
    try:
        answer = door.post(f"/v2/models/{ECHO}/infer", json=SAID)
        door.post(f"/v2/repository/models/{ECHO}/unload", json={})
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    try:
        return [one["data"] for one in answer.json()["outputs"]]
    except (ValueError, KeyError, TypeError):
        return " ".join(answer.text.split())[:SHOWN] or "it said nothing"


def _free_port(host: str, held: ExitStack) -> int:
    listener = held.enter_context(socket.socket())
    listener.bind((host, 0))
    return int(listener.getsockname()[1])


def main(arguments: Sequence[str]) -> int:
    """Serve the repository that is named until told to stop; without one, check the echo."""
    for sign in (signal.SIGTERM, signal.SIGINT):  # until they are passed on to the server
        signal.signal(sign, lambda *_: sys.exit(0))
    with TemporaryDirectory() as empty:
        repository = Path(arguments[0] if arguments else empty)
        with TritonServer(repository) as server:
            sys.stdout.write(f"tritonserver echoes; {server.url}, gRPC {server.grpc}\n")
            sys.stdout.flush()
            return server.wait() if arguments else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PipeError as error:
        lines = (error.details, f"error: {error}", f"hint: {error.hint}")
        sys.exit("\n".join(filter(None, lines)))
