"""Arguments and options that several commands share, and the output of results."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel

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


def print_result(result: Result, show_text: Callable[[Result], None], *, as_json: bool) -> None:
    """Print a result as JSON, or as text for people."""
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        show_text(result)
