"""Which classes there are and in which order; the same in every run and process."""

from pathlib import Path

from pipework.data.examples import Example, Source
from pipework.data.readers import numbered_lines
from pipework.errors import ConfigError
from pipework.run_folder.task import TaskKind

SCORE = "score"


def class_labels(given: tuple[str, ...] | Path | None, source: Source) -> tuple[str, ...]:
    """Return the classes in logit order: those configured, else those of the train file, sorted.

    Numbers sort as numbers, so that "10" follows "9". Rows that are held out for dev are looked
    at too, since a rare label may stand there alone. A regression has one logit, "score", and
    pretraining no class.

    Raises:
        ConfigError: too few classes, or one named twice.
        DataError: the file of names cannot be read.
    """
    if source.kind is TaskKind.PRETRAIN:
        return ()
    if source.kind is TaskKind.REGRESSION:
        return (SCORE,)
    if isinstance(given, Path):
        labels = tuple(text.strip() for _, text in numbered_lines(given) if text.strip())
    elif given is not None:
        labels = given
    else:
        found = {label for example in source.whole().rows() for label in _labels(example)}
        numbers = all(label.isdecimal() for label in found)
        labels = tuple(sorted(found, key=int if numbers else str))
    fewest = 2 if source.kind is TaskKind.SINGLE_LABEL else 1
    if len(set(labels)) != len(labels) or len(labels) < fewest:
        message = f"expected {fewest} or more distinct labels, found {len(labels)}: {labels[:10]}"
        raise ConfigError(message, "set task.labels, or check data.columns.label")
    return labels


def _labels(example: Example) -> tuple[str, ...]:
    if isinstance(example.label, str):
        return (example.label,)
    return example.label or ()
