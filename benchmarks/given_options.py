"""The options of a program as a stored result tells them: without the places of this machine."""

import argparse
from pathlib import Path


def command(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line that repeats a program, a module that has only options.

    Options that are what they would be by themselves are left out. In place of a path, and of what
    is a folder here, stands the name of its option in capitals.
    """
    words = parser.prog.split()
    for name, value in vars(given).items():
        if value == parser.get_default(name):
            continue
        values = [_told(name, one) for one in (value if isinstance(value, list) else [value])]
        if name == "set":  # which is given again for each value
            words += (word for one in values for word in ("--set", one))
        else:
            words += (f"--{name}", *values)
    return tuple(words)


def _told(name: str, value: object) -> str:
    return name.upper() if isinstance(value, Path) or Path(f"{value}").is_dir() else f"{value}"
