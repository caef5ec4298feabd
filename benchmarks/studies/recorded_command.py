"""The command line that a stored result records: without paths of this machine."""

import argparse
from pathlib import Path


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
