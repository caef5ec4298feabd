"""Start `pipe serve` for a study and wait until it is ready.

`python -m pipework.benchmarks.studies.pipe_serve RUN [OPTIONS]` serves a run and measures it; the
options are as in `pipe bench`.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from pipework.benchmarks.studies.script import report_errors
from pipework.client import Client
from pipework.errors import NotReadyError

URL = re.compile(r"http://\S+")
START_S, STOP_S, POLL_S = 60.0, 60.0, 0.1


@contextmanager
def running_server(run: Path) -> Iterator[str]:
    """Serve a run folder on a free port until the context ends; yield the HTTP base URL.

    Works in the main thread only, because it handles SIGTERM: the server is stopped after an
    exception and after SIGTERM, too.

    Raises:
        NotReadyError: the server does not start.
    """
    pipe = str(Path(sys.executable).with_name("pipe"))
    command = [pipe, "serve", str(run), "--port", "0", "--grpc-port", "0"]
    # SIGTERM becomes SystemExit, so that the `finally` below stops the server.
    previous_handler = signal.signal(signal.SIGTERM, _exit)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  (our own program)
        try:
            match = URL.search(process.stdout.readline() if process.stdout else "")
            if match is None or not _is_ready(match[0], process):
                message = "the server did not start; its error message is above this line"
                raise NotReadyError(message, f"run it by hand: pipe serve {run}")
            yield match[0]
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, previous_handler)


def _is_ready(url: str, process: "subprocess.Popen[str]") -> bool:
    deadline_s = time.monotonic() + START_S
    with Client(url) as client:
        while time.monotonic() < deadline_s and process.poll() is None:
            if client.ready():
                return True
            time.sleep(POLL_S)
    return False


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
        with running_server(Path(words[0])) as url:
            pipe = Path(sys.executable).with_name("pipe")
            command = [str(pipe), "bench", url, *words[1:]]
            return subprocess.run(command, check=False).returncode  # noqa: S603  (our own program)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
