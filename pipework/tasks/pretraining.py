"""Pretraining of an encoder on texts without labels: the result predicts nothing."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pipework.tasks.kinds import Metric
from pipework.tasks.labels import Label
from pipework.tasks.task import Task


class PretrainingTask(Task):
    """Masked tokens, and for some families the order of sentences."""

    kind: Literal["pretrain"] = "pretrain"
    predicts: ClassVar[bool] = False
    has_labels: ClassVar[bool] = False
    fixed_labels: ClassVar[tuple[str, ...] | None] = ()

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the metrics; see `Task`."""
        return (Metric.MASKED_ACCURACY, Metric.ORDER_ACCURACY)

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return no label: the texts are the targets."""
        return ()
