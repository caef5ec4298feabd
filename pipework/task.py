"""What a classifier decides, and by which score it is judged."""

from enum import StrEnum

from pipework.record import Record


class TaskKind(StrEnum):
    """What the classifier decides."""

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"


class Metric(StrEnum):
    """A score over a split, by which a checkpoint is chosen; higher is better.

    `directional_f1` is the official score of SemEval-2010 task 8: the macro-F1 of the relations,
    directions told apart, without the class Other (Hendrickx et al. 2010,
    https://aclanthology.org/S10-1006).
    """

    ACCURACY = "accuracy"
    MACRO_F1 = "macro_f1"
    MICRO_F1 = "micro_f1"
    MATTHEWS = "matthews"
    DIRECTIONAL_F1 = "directional_f1"
    PEARSON = "pearson"
    SPEARMAN = "spearman"


class Task(Record):
    """What is decided; `labels` are in the order of the logits.

    A regression has one logit, named "score". `thresholds` are of a multi-label task, one a label:
    a label is given where its probability reaches its threshold.
    """

    kind: TaskKind
    labels: tuple[str, ...]
    metric: Metric
    thresholds: tuple[float, ...] = ()
