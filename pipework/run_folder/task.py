"""The task of a model: its kind, labels and metric."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from pipework.errors import RunFolderError
from pipework.run_folder.files import Record

WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


class TaskKind(StrEnum):
    """The kind of task: classification, regression, or pretraining of an encoder."""

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"
    PRETRAIN = "pretrain"


class Metric(StrEnum):
    """A score over a split that selects the best checkpoint; higher is better.

    `directional_f1` is the official score of SemEval-2010 task 8: the macro-F1 of the relations
    with their directions, without the class Other (Hendrickx et al. 2010,
    https://aclanthology.org/S10-1006). `f1` is the F1 of the positive label of
    two. `masked_accuracy` and `order_accuracy` belong to pretraining: the share of correctly
    predicted masked tokens and sentence orders.
    """

    ACCURACY = "accuracy"
    MACRO_F1 = "macro_f1"
    MICRO_F1 = "micro_f1"
    F1 = "f1"
    MATTHEWS = "matthews"
    DIRECTIONAL_F1 = "directional_f1"
    PEARSON = "pearson"
    SPEARMAN = "spearman"
    MASKED_ACCURACY = "masked_accuracy"
    ORDER_ACCURACY = "order_accuracy"


class Loss(StrEnum):
    """A mean pretraining loss over a split, in nats; the checkpoint has the smallest sum."""

    MASKED = "masked_loss"
    ORDER = "order_loss"


class Task(Record):
    """The task of a model; `labels` are in the order of the logits.

    A regression has one logit, named "score"; pretraining has no labels. `thresholds`, one per
    label, belong to a multi-label task: a label is predicted if its probability is at least its
    threshold. `positive` is one of two labels; None is the second.
    """

    kind: TaskKind
    labels: tuple[str, ...]
    metric: Metric
    thresholds: tuple[float, ...] = ()
    positive: str | None = None

    @property
    def positive_index(self) -> int:
        """The index of the positive label of two."""
        return 1 if self.positive is None else self.labels.index(self.positive)

    @model_validator(mode="after")
    def _valid_labels(self) -> Self:
        labels = self.labels
        if len(set(labels)) != len(labels) or bool(labels) is (self.kind is TaskKind.PRETRAIN):
            message = f"expected distinct labels, and none for pretraining; found {labels}"
            raise ValueError(message)
        two = len(labels) == 2  # noqa: PLR2004
        if self.metric is Metric.F1 and not two:
            message = f"the metric f1 needs two labels, found {len(labels)}"
            raise ValueError(message)
        if self.positive is not None and not (two and self.positive in labels):
            message = f"expected positive to be one of two labels, found {self.positive!r}"
            raise ValueError(message)
        return self


class TargetScale(Record):
    """Mean and standard deviation of the train targets of a regression.

    The model is trained on (target - mean) / std. Its last layer contains the inverse, so the
    checkpoint and the engines return values on the scale of the targets.
    """

    mean: float
    std: float


class SplitMetrics(Record):
    """Scores of the checkpoint on a split; `losses` are set for pretraining.

    `tokens` is the digest of the token ids of all rows, see `pipework.text.encoding.token_digest`.
    """

    rows: int
    scores: dict[Metric, float]
    tokens: str | None = None
    losses: dict[Loss, float] = Field(default_factory=dict)


def not_a_classifier(where: str = "this run") -> RunFolderError:
    """Return the error for a pretraining run where a classifier is required."""
    message = f"{where} is of pretraining: it has an encoder and no classifier"
    return RunFolderError(message, "fine-tune it first: pipe train CONFIG --set model.name=RUN")


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
