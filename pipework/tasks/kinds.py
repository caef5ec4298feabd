"""The names of scores, losses and words, as in configs and manifests. No NumPy."""

from enum import StrEnum

DEFAULT_KIND = "single_label"


class Metric(StrEnum):
    """A score over a split that selects the best checkpoint; higher is better.

    `directional_f1` is the official score of SemEval-2010 task 8: the macro-F1 of the relations
    with their directions, without the class Other (Hendrickx et al. 2010,
    https://aclanthology.org/S10-1006). `f1` is the F1 of the positive label of two. `mean_score` is
    the mean of the metrics of several heads. `masked_accuracy` and `order_accuracy` belong to
    pretraining: the share of correctly predicted masked tokens and sentence orders.
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
    MEAN_SCORE = "mean_score"


class Reported(StrEnum):
    """A score that is reported, and never selects the checkpoint."""

    ROC_AUC = "roc_auc"
    MACRO_ROC_AUC = "macro_roc_auc"
    MICRO_ROC_AUC = "micro_roc_auc"
    MEAN_ABSOLUTE_ERROR = "mean_absolute_error"
    OVERLAP_F1 = "overlap_f1"


Score = Metric | Reported
NAMED_AFTER_PEOPLE = (Metric.MATTHEWS, Metric.PEARSON, Metric.SPEARMAN)


def metric_in_words(metric: Score) -> str:
    """Return the display name of a metric: macro-F1, Pearson."""
    if metric in NAMED_AFTER_PEOPLE:
        return metric.capitalize()
    name = metric.replace("roc_auc", "ROC AUC").replace("f1", "F1")
    plain = (Reported.MEAN_ABSOLUTE_ERROR, Metric.MEAN_SCORE)
    return name.replace("_", " " if metric in plain else "-")


class Words(StrEnum):
    """The units of a text that have a tag: words, by their first tokens, or tokens."""

    WHITESPACE = "whitespace"
    LETTERS = "letters"
    TOKENS = "tokens"


class Loss(StrEnum):
    """A mean pretraining loss over a split, in nats; the checkpoint has the smallest sum."""

    MASKED = "masked_loss"
    ORDER = "order_loss"
