"""Determine the classes of a task and their order, equal in every run and process."""

from pathlib import Path

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.train.config.data import read_labels


def class_labels(configured: tuple[str, ...] | Path | None, source: Source) -> tuple[str, ...]:
    """Return the classes in logit order: as configured, else the sorted labels of the train file.

    Numbers are sorted numerically: "10" after "9". A regression has one logit, "score", and
    pretraining has no class.

    Raises:
        ConfigError: there are too few classes, or duplicates.
        DataError: the file of names cannot be read.
    """
    task = source.task
    if task.fixed_labels is not None:
        return task.fixed_labels
    if isinstance(configured, Path):
        labels = read_labels(configured)
    elif configured is not None:
        labels = configured
    elif isinstance(source.columns.label, tuple):
        labels = tuple(map(str, source.columns.label))
    else:
        # Read the rows held out for dev too: a rare label may occur only there.
        names = {label for example in source.whole().rows() for label in example.labels}
        numeric = all(name.isdecimal() for name in names)
        labels = tuple(sorted(names, key=int if numeric else str))
    minimum = task.fewest_labels
    if len(set(labels)) != len(labels) or len(labels) < minimum:
        message = f"expected {minimum} or more distinct labels, found {len(labels)}: {labels[:10]}"
        raise ConfigError(message, "set task.labels, or check data.columns.label")
    return labels
