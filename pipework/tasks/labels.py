"""Labels of rows in data files: parsing, and their position among the labels of the model."""

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pipework.errors import DataError, InputError
from pipework.tasks.spans import Span

Label = str | tuple[str, ...] | tuple[Span, ...]
NO_LABEL = -1  # of a token, in labels with a row for each token
FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
ADJACENT = re.compile(r"""['"]\s+['"]""")  # the items of an array of texts in numpy
WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


def spans_of(label: Label | None) -> list[Span]:
    """Return the spans of the label of a row."""
    return [one for one in label or () if isinstance(one, Span)]


def label_names(label: Label | None) -> tuple[str, ...]:
    """Return the distinct names in the label of a row; of spans, their types."""
    if isinstance(label, str):
        return (label,)
    names = (one.label if isinstance(one, Span) else one for one in label or ())
    return tuple(dict.fromkeys(names))


def parse_name(value: object) -> str:
    """Return the name of a label.

    Raises:
        InputError: the value of the cell is neither a string nor a whole number, or it is empty.
    """
    if isinstance(value, bool):
        return str(value).lower()  # as in JSON
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas writes whole numbers so in a column with missing values
    if value is None or not str(value).strip():
        message = f"the label is {'null' if value is None else 'empty'}"
        raise InputError(message, "set data.skip_unlabelled = true to leave such rows out")
    if not isinstance(value, str | int):
        message = f"expected a label, found {type(value).__name__}"
        raise InputError(message, "a label is a string or a whole number")
    return str(value).strip()


def flagged(flags: Mapping[str, object]) -> list[str]:
    """Return the names whose value is 1 or true; all others are 0 or false.

    Raises:
        InputError: a value is neither.
    """
    for name, value in flags.items():
        if str(value).strip().lower() not in FLAGS:
            message = f"expected 0 or 1 for the label {name!r}, found {value!r}"
            raise InputError(message, "leave such rows out with data.no_label, or correct them")
    return [name for name, value in flags.items() if FLAGS[str(value).strip().lower()]]


def is_vector(values: Sequence[object]) -> bool:
    """Return whether values are 0 or 1 each, as numbers or as texts."""
    return all(str(value).strip().lower() in FLAGS for value in values)


def parse_list(text: str) -> list[object] | None:
    """Return the list that a text is in Python or JSON, or a vector of numpy; None if it is none.

    Raises:
        InputError: the items of the list are not separated by commas.
    """
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        return None
    if ADJACENT.search(inner):
        message = f"expected commas between the labels, found {inner[:40]}"
        raise InputError(message, "write a list with tolist() before the file is saved")
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        value = ast.literal_eval(inner)
        return value if isinstance(value, list) else None
    items: list[object] = [*inner.strip("[]").split()]
    return items if is_vector(items) else None


def resolve_label(text: str, labels: Mapping[str, int]) -> int | None:
    """Return the index of a label that is given by name or by index; None if it is unknown.

    Files often hold indices and keep the names in a separate list. If some label names are
    themselves numbers, a number is always a name.
    """
    if text in labels:
        return labels[text]
    if not WHOLE_NUMBER.fullmatch(text) or any(WHOLE_NUMBER.fullmatch(label) for label in labels):
        return None
    return int(text) if int(text) < len(labels) else None


def class_index(at: str, label: Label | None, index: Mapping[str, int]) -> int:
    """Return the index of the label of a row.

    Args:
        at: file and line of the row, for the error.
        label: the label of the row.
        index: the position of each label of the model.

    Raises:
        DataError: the model does not have this label.
    """
    position = resolve_label(label, index) if isinstance(label, str) else None
    if position is None:
        message = f"{at} has label {label!r}, which the model lacks"
        raise DataError(message, f"known labels: {', '.join(index)}")
    return position
