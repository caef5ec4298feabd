"""Parameters of a test that repeat its first ones; `make test` leaves the repetitions out."""

from collections.abc import Iterable

import pytest


def repeated(values: Iterable[object], quick: int = 1) -> list[object]:
    """Return the parameters of a test; those after the first `quick` have the marker `thorough`.

    A tuple has a value for each argument.
    """
    return [
        value if number < quick else _thorough(value if isinstance(value, tuple) else (value,))
        for number, value in enumerate(values)
    ]


def _thorough(values: tuple[object, ...]) -> object:
    return pytest.param(*values, marks=pytest.mark.thorough)
