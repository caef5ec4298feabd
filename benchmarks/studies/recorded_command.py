"""The options of a program as a stored result tells them: without the places of this machine."""

import argparse
from pathlib import Path


def command(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line that repeats a program, a module that has only options.

    Options that are what they would be by themselves are left out. In place of a path stands the
    name of its option in capitals, after `--set KEY=` PLACE.
    """
    words = parser.prog.split()
    for name, value in vars(given).items():
        if value == parser.get_default(name):
            continue
        values = value if isinstance(value, list) else [value]
        if name == "set":  # which is given again for each value
            for key, _, text in (one.partition("=") for one in values):
                words += ("--set", f"{key}={_told('place', text)}")
        else:
            words += (f"--{name.replace('_', '-')}", *(_told(name, one) for one in values))
    return tuple(words)


def _told(name: str, value: object) -> str:
    text = f"{value}"
    place = isinstance(value, Path) or ("/" in text and Path(text).exists())
    return name.upper() if place else text
