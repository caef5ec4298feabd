"""Shared by the studies: options, errors, the stored command line, the file of the result."""

import argparse
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from pipework import console
from pipework.benchmarks.results_schema.results import write_result
from pipework.errors import PipeError, as_pipe_error
from pipework.progress import Progress
from pipework.record import Record
from pipework.run_folder.files import check_writable

P = ParamSpec("P")
Stored = TypeVar("Stored", bound=Record)


def report_errors(main: Callable[P, int]) -> Callable[P, int]:
    """Wrap a `main` function: print user errors with their hint to stderr, return their exit code.

    User errors are PipeError and missing optional packages. All other exceptions propagate.
    """

    @wraps(main)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (PipeError, ModuleNotFoundError) as error:
            user_error = as_pipe_error(error)
            if user_error is None:
                raise
            console.print_error(user_error)
            return user_error.exit_code

    return wrapper


def study_parser(
    study: str, about: str | None, *, run: bool = False, commands: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with --out, with `run` --run and --name, and with `commands` --command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m pipework.benchmarks.studies.{study}", description=about
    )
    if run:
        parser.add_argument("--run", type=Path, required=True, help="run folder with engines")
        parser.add_argument("--name", required=True, help="name of the run in the table")
    if commands:
        about = "command that reproduces the result"
        parser.add_argument("--command", action="append", default=[], help=about)
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    return parser


def stored(out: Path, measure: Callable[[Progress], Stored]) -> Stored:
    """Measure, write the result to a file, and return it; the path is checked before."""
    check_writable(out)
    progress = console.progress()
    try:
        result = measure(progress)
    finally:
        progress.close()
    write_result(out, result)
    return result


def command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line that reproduces a run of a program that has only options.

    Options with their default value are left out. A path is replaced by the name of its option in
    capitals.
    """
    words = parser.prog.split()
    for name, value in vars(options).items():
        if value != parser.get_default(name):
            values = value if isinstance(value, list) else [value]
            shown = (_without_path(name, item) for item in values)
            words += (f"--{name.replace('_', '-')}", *shown)
    return tuple(words)


def _without_path(name: str, value: object) -> str:
    text = f"{value}"
    is_path = isinstance(value, Path) or ("/" in text and Path(text).exists())
    return name.upper() if is_path else text
