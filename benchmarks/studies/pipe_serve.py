"""Start `pipe serve` for a study and wait until it is ready.

`python -m pipework.benchmarks.studies.pipe_serve RUN [OPTIONS] [-- OPTIONS]` serves a run and
measures it; the options are those of `pipe bench`, and of `pipe serve` after `--`.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from pipework.benchmarks.demo import StageError, server_url
from pipework.benchmarks.studies.script import report_errors
from pipework.errors import NotReadyError

STOP_S = 60.0


@contextmanager
def running_server(run: Path, *options: str) -> Iterator[str]:
    """Serve a run folder on a free port until the context ends; yield the HTTP base URL.

    The options are those of `pipe serve`.

    Works in the main thread only, because it handles SIGTERM: the server is stopped after an
    exception and after SIGTERM, too.

    Raises:
        NotReadyError: the server does not start.
    """
    pipe = str(Path(sys.executable).with_name("pipe"))
    command = [pipe, "serve", str(run), "--port", "0", "--grpc-port", "0", *options]
    # SIGTERM becomes SystemExit, so that the `finally` below stops the server.
    previous_handler = signal.signal(signal.SIGTERM, _exit)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  (our own program)
        try:
            yield _ready_url(process, command, run)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, previous_handler)


def _ready_url(process: "subprocess.Popen[str]", command: list[str], run: Path) -> str:
    try:
        return server_url(process, command)
    except (StageError, subprocess.TimeoutExpired) as error:
        message = "the server did not start; its error message is above this line"
        raise NotReadyError(message, f"run it by hand: pipe serve {run}") from error


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Start `pipe serve RUN` and run `pipe bench URL OPTIONS`; return its exit code."""
    words = [*(sys.argv[1:] if arguments is None else arguments), "--"]
    end = words.index("--")
    words, server_options = words[:end], words[end + 1 : -1]
    if not words or words[0].startswith("-"):
        found = " ".join(words) or "nothing"
        sys.stderr.write(f"expected a run folder as first argument, found {found}\n")
        return 2
    try:
        with running_server(Path(words[0]), *server_options) as url:
            pipe = Path(sys.executable).with_name("pipe")
            command = [str(pipe), "bench", url, *words[1:]]
            return subprocess.run(command, check=False).returncode  # noqa: S603  (our own program)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
