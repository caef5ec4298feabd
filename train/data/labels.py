"""Determine the classes of a task and their order, equal in every run and process."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipework.data.examples import Source
from pipework.errors import ConfigError, DataError
from pipework.tasks.labels import resolve_label
from pipework.train.config.data import read_labels

LISTED = 10  # labels in a message


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
    elif isinstance(source.reading.label, tuple):
        labels = tuple(map(str, source.reading.label))
    else:
        # Read the rows held out for dev too: a rare label may occur only there.
        names = {label for example in source.whole().rows() for label in example.labels}
        numeric = all(name.isdecimal() for name in names)
        labels = tuple(sorted(names, key=int if numeric else str))
    minimum = task.fewest_labels
    if not labels and (skipped := source.skipped_rows()):
        message = f"{source.path}: all {skipped:,} rows lack a label at {source.reading.label!r}"
        hint = "check data.columns.label, data.skip_unlabelled and data.no_label"
        raise ConfigError(message, hint)
    if len(set(labels)) != len(labels) or len(labels) < minimum:
        message = f"expected {minimum} or more distinct labels, found {len(labels)}: {labels[:10]}"
        raise ConfigError(message, "set task.labels, or check data.columns.label")
    return task.logit_names(labels)


def check_labels(labels: Sequence[str], sources: Mapping[str, Source], *, configured: bool) -> None:
    """Check that all labels in the files are classes of the task.

    Args:
        labels: the classes.
        sources: the files by split name.
        configured: whether the classes are not those of the train file.

    Raises:
        DataError: a row has another label, or cannot be read.
    """
    names = sources["train"].task.data_names(labels)
    index = {label: position for position, label in enumerate(names)}
    listed = ", ".join([*names[:LISTED], *["..."][: len(names) > LISTED]])
    for split, source in sources.items():
        if source.task.fixed_labels is not None or (split == "train" and not configured):
            continue
        known = {*names}
        for row in source.rows():
            new = [name for name in row.labels if name not in known]
            for name in new:
                if resolve_label(name, index) is None:
                    message = f"{source.path}:{row.line} has label {name!r}, which the model lacks"
                    out = f'add it to task.labels, or leave it out: data.no_label = ["{name}"]'
                    raise DataError(message, f"known labels: {listed}; {out}")
            known.update(new)
