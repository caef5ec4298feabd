"""What a model decides, and by which score it is judged."""

from enum import StrEnum

from pipework.errors import RunFolderError
from pipework.run_folder.files import Record


class TaskKind(StrEnum):
    """What the model decides: what a classifier answers, or, to learn from, what text is like."""

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"
    PRETRAIN = "pretrain"


class Metric(StrEnum):
    """A score over a split, by which a checkpoint is chosen; higher is better.

    `directional_f1` is the official score of SemEval-2010 task 8: the macro-F1 of the relations,
    directions told apart, without the class Other (Hendrickx et al. 2010,
    https://aclanthology.org/S10-1006). The last two are of pretraining: the share of masked tokens,
    and of orders of two segments, that were told.
    """

    ACCURACY = "accuracy"
    MACRO_F1 = "macro_f1"
    MICRO_F1 = "micro_f1"
    MATTHEWS = "matthews"
    DIRECTIONAL_F1 = "directional_f1"
    PEARSON = "pearson"
    SPEARMAN = "spearman"
    MASKED_ACCURACY = "masked_accuracy"
    ORDER_ACCURACY = "order_accuracy"


class Loss(StrEnum):
    """A mean loss over a split, in nats; the least sum of them chooses a checkpoint."""

    MASKED = "masked_loss"
    ORDER = "order_loss"


class Task(Record):
    """What is decided; `labels` are in the order of the logits.

    A regression has one logit, named "score"; pretraining has no labels. `thresholds` are of a
    multi-label task, one a label: a label is given where its probability reaches its threshold.
    """

    kind: TaskKind
    labels: tuple[str, ...]
    metric: Metric
    thresholds: tuple[float, ...] = ()


def no_classifier(where: str = "this run") -> RunFolderError:
    """Return the error for a pretraining run where a classifier is needed."""
    message = f"{where} is of pretraining: it has an encoder and no classifier"
    return RunFolderError(message, "fine-tune it first: pipe train CONFIG --set model.name=RUN")
