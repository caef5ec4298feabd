"""The options of commands, to check those of the makefiles of benchmarks/studies."""

import io
import re
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module

import pytest
from typer.main import get_command

from pipework.cli import app


def options(text):
    return set(re.findall(r"(?<!\S)--[a-z-]+", text))


@cache
def options_of(program):
    """Return the options of `pipe COMMAND` or of a module."""
    if program.endswith(".pipe_serve"):  # it passes its options on to pipe bench
        return options_of("bench")
    if not program.startswith("pipework."):
        return {name for each in get_command(app).commands[program].params for name in each.opts}
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit):
        import_module(program).main(["--help"])
    return options(re.sub(r"[\[,]", " ", shown.getvalue()))
