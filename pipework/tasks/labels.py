"""Labels of rows in data files: parsing, and their position among the labels of the model."""

import re
from collections.abc import Mapping

from pipework.errors import DataError, InputError

Label = str | tuple[str, ...]
NO_LABEL = -1  # of a token, in labels with a row for each token
WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


def parse_name(value: object) -> str:
    """Return the name of a label.

    Raises:
        InputError: the value of the cell is neither a string nor a whole number, or it is empty.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        message = f"expected a label, found {type(value).__name__}"
        raise InputError(message, "a label is a string or a whole number")
    if not (label := str(value).strip()):
        message = "the label is empty"
        raise InputError(message, "every row of this file needs a label")
    return label


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
