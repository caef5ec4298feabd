"""Error handling shared by the command-line programs of the studies."""

import argparse
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from pipework import console
from pipework.errors import PipeError, as_pipe_error

P = ParamSpec("P")


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


def command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line that reproduces a run of a program that has only options.

    Options with their default value are left out. A path is replaced by the name of its option in
    capitals, and after `--set KEY=` by PLACE.
    """
    words = parser.prog.split()
    for name, value in vars(options).items():
        if value == parser.get_default(name):
            continue
        values = value if isinstance(value, list) else [value]
        if name == "set":  # repeated for each value
            for key, _, text in (item.partition("=") for item in values):
                words += ("--set", f"{key}={_without_path('place', text)}")
        else:
            shown = (_without_path(name, item) for item in values)
            words += (f"--{name.replace('_', '-')}", *shown)
    return tuple(words)


def _without_path(name: str, value: object) -> str:
    text = f"{value}"
    is_path = isinstance(value, Path) or ("/" in text and Path(text).exists())
    return name.upper() if is_path else text
