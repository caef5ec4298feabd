"""A run, served and asked: `python -m pipework.benchmarks.studies.served_run RUN [OPTIONS of pipe bench]`."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipework import console
from pipework.benchmarks.studies.serving import running
from pipework.errors import PipeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask `pipe serve RUN` as `pipe bench URL OPTIONS` does; return the exit code of that."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0].startswith("-"):
        sys.stderr.write(f"expected a run folder first, found {' '.join(given) or 'nothing'}\n")
        return 2
    try:
        with running(Path(given[0])) as (doors, _):
            pipe = Path(sys.executable).with_name("pipe")
            words = [str(pipe), "bench", f"http://{doors['http']}", *given[1:]]
            return subprocess.run(words, check=False).returncode  # noqa: S603  (our own program)
    except PipeError as error:
        console.complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
