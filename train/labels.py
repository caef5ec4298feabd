"""Which classes there are and in which order; the same in every run and process."""

from pathlib import Path

from pipework.errors import ConfigError
from pipework.examples import Source, numbered_lines


def class_labels(given: tuple[str, ...] | Path | None, source: Source) -> tuple[str, ...]:
    """Return the classes in logit order: those configured, else those of the train file, sorted.

    Numbers sort as numbers, so that "10" follows "9".

    Raises:
        ConfigError: fewer than two classes, or one named twice.
        DataError: the file of names cannot be read.
    """
    if isinstance(given, Path):
        labels = tuple(text.strip() for _, text in numbered_lines(given) if text.strip())
    elif given is not None:
        labels = given
    else:
        found = {example.label for example in source.rows() if example.label is not None}
        numbers = all(label.isdecimal() for label in found)
        labels = tuple(sorted(found, key=int if numbers else str))
    if len(set(labels)) != len(labels) or len(labels) < 2:  # noqa: PLR2004
        message = f"expected two or more distinct labels, found {len(labels)}: {labels[:10]}"
        raise ConfigError(message, "set task.labels, or check data.columns.label")
    return labels
