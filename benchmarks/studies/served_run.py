"""Serve a run and measure it: `python -m pipework.benchmarks.studies.served_run RUN [OPTIONS]`.

The options are those of `pipe bench`.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.script import report_errors


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
