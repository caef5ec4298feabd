"""Start `pipe serve` for a study and wait until it is ready.

`python -m pipework.benchmarks.studies.pipe_serve RUN [OPTIONS]` serves a run and measures it; the
options are those of `pipe bench`.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipework.benchmarks.studies.script import report_errors
from pipework.client import Client
from pipework.errors import NotReadyError

ADDRESSES = re.compile(r"http://(?P<http>\S+) and gRPC on (?P<grpc>\S+)")
START_S, STOP_S, POLL_S = 60.0, 60.0, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerProcess:
    """A running `pipe serve` process.

    Attributes:
        addresses: HOST:PORT by protocol, "http" and "grpc".
        pid: process id of the server.
    """

    addresses: dict[str, str]
    pid: int

    @property
    def url(self) -> str:
        """The HTTP base URL."""
        return f"http://{self.addresses['http']}"


@contextmanager
def running_server(
    run: Path, *options: str, program: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Serve a run folder on free ports until the context ends.

    Args:
        run: the run folder.
        options: options of `pipe serve`.
        program: the command, by default `pipe serve`.

    Works in the main thread only, because it handles SIGTERM: the server is stopped after an
    exception and after SIGTERM, too.

    Raises:
        NotReadyError: the server does not start.
    """
    pipe_serve = (str(Path(sys.executable).with_name("pipe")), "serve")
    command = [*(program or pipe_serve), str(run), "--port", "0", "--grpc-port", "0", *options]
    # SIGTERM becomes SystemExit, so that the `finally` below stops the server.
    previous_handler = signal.signal(signal.SIGTERM, _exit)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  (our own program)
        try:
            line = process.stdout.readline() if process.stdout else ""
            match = ADDRESSES.search(line)
            if match is None:
                message = "the server did not start; its error message is above this line"
                raise NotReadyError(message, f"run it by hand: pipe serve {run}")
            server = ServerProcess(addresses=match.groupdict(), pid=process.pid)
            _wait_until_ready(server, process, run)
            yield server
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, previous_handler)


def _wait_until_ready(server: ServerProcess, process: "subprocess.Popen[str]", run: Path) -> None:
    deadline_s = time.monotonic() + START_S
    with Client(server.url) as client:
        while time.monotonic() < deadline_s and process.poll() is None:
            if client.ready():
                return
            time.sleep(POLL_S)
    message = f"the server did not become ready within {START_S:.0f} s"
    raise NotReadyError(message, f"run it by hand: pipe serve {run}")


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Start `pipe serve RUN` and run `pipe bench URL OPTIONS`; return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0].startswith("-"):
        found = " ".join(words) or "nothing"
        sys.stderr.write(f"expected a run folder as first argument, found {found}\n")
        return 2
    try:
        with running_server(Path(words[0])) as server:
            pipe = Path(sys.executable).with_name("pipe")
            command = [str(pipe), "bench", server.url, *words[1:]]
            return subprocess.run(command, check=False).returncode  # noqa: S603  (our own program)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
