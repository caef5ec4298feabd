"""Arguments and options that several commands share, and the output of results."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel

from pipework.errors import ConfigError
from pipework.progress import Progress

Run = Annotated[Path, typer.Argument(help="run folder")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; section.key= removes it")
]
Columns = Annotated[
    str | None, typer.Option(help="columns of the file, if they differ from training: text=NAME")
]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="name of a proven engine or kept step, see pipe show")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Result = TypeVar("Result", bound=BaseModel)


def note_torch(progress: Progress) -> None:
    """Say that torch is being imported, which takes seconds.

    Raises:
        ConfigError: Python runs with -OO: transformers needs its docstrings.
    """
    if sys.flags.optimize > 1:
        message = "Python runs with -OO or PYTHONOPTIMIZE=2, which removes docstrings"
        raise ConfigError(message, "use -O: transformers reads its docstrings")
    progress.note("loading torch")


def print_result(result: Result, show_text: Callable[[Result], None], *, as_json: bool) -> None:
    """Print a result as JSON, or as text for people."""
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        show_text(result)
