"""The names of scores and of losses, as in configs and manifests. No NumPy."""

from enum import StrEnum

DEFAULT_KIND = "single_label"


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
