"""A toy kind of task, all in this module: a label for each word, so a row for each token."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch.nn import functional

from pipework.tasks import metrics
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Metric
from pipework.tasks.labels import NO_LABEL
from pipework.tasks.predictions import LABEL, ColumnType, PredictedColumn
from pipework.tasks.registry import TASKS
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.objectives import OBJECTIVES, Objective

WIDTH = 12  # most tokens of a text with its labels


@dataclass(frozen=True, kw_only=True, slots=True)
class WordLabels:
    labels: tuple[str, ...]
    truncated: bool = False

    def text_fields(self, separator=" "):
        return ((separator or " ").join(self.labels),)


class WordTask(SingleLabelTask):
    """The best label of each word; every word is one token between [CLS] and [SEP]."""

    kind: Literal["words"] = "words"
    rows_per_token: ClassVar[bool] = True
    baseline: ClassVar[str] = ""
    problem_type: ClassVar[str] = ""

    truth_shape: ClassVar = (WIDTH,)

    @classmethod
    def applicable_metrics(cls, labels):
        del labels
        return (Metric.ACCURACY,)

    @classmethod
    def parse_label(cls, value, separator, vector=()):
        del separator, vector
        return tuple(str(value).split())

    def truth(self, rows):
        truth_NT = np.full((len(rows), WIDTH), NO_LABEL, np.int32)
        for row, (_, labels) in enumerate(rows):
            known = [self.labels.index(label) for label in labels[: WIDTH - 1]]
            truth_NT[row, 1 : 1 + len(known)] = known
        return truth_NT

    def decode(self, outputs, top_k=None):
        del top_k
        best_R = outputs.values.argmax(axis=1)
        ends = zip(outputs.offsets, outputs.offsets[1:], strict=False)
        words = [best_R[start + 1 : end - 1] for start, end in ends]
        return [WordLabels(labels=tuple(self.labels[best] for best in row)) for row in words]

    def columns(self, outputs):
        values = [[*prediction.labels] for prediction in self.decode(outputs)]
        return {LABEL: PredictedColumn(type=ColumnType.TEXT, many=True, values=values)}

    def _tally(self, outputs, truth):
        pairs = [
            (truth[row][: len(values)], values.argmax(axis=1))
            for row, values in enumerate(np.split(outputs.values, outputs.offsets[1:-1]))
        ]
        true_R, found_R = (np.concatenate(column) for column in zip(*pairs, strict=True))
        known_R = true_R != NO_LABEL
        return metrics.tally_classes(true_R[known_R], found_R[known_R], len(self.labels))

    def evaluate(self, outputs, truth):
        score = metrics.accuracy(self._tally(outputs, np.asarray(truth, np.int64)))
        return Evaluation(
            rows=len(outputs),
            metric=self.metric,
            scores={Metric.ACCURACY: score},
            classes=(),
            confusion=(),
        )

    def scorer(self, outputs, truth):
        return lambda rows: self.evaluate(outputs.take(rows), truth[rows]).score

    def constant(self, truth):
        counts_C = np.bincount(truth[truth != NO_LABEL], minlength=len(self.labels))
        logits_C = np.eye(len(self.labels))[counts_C.argmax()]
        return f"predicting {self.labels[counts_C.argmax()]!r} for every word", logits_C


def word_losses(logits_TC, truth_T, smoothing, weights_C):
    """Return the cross entropy of each token, 0 without a label."""
    del smoothing, weights_C
    return functional.cross_entropy(
        logits_TC.float(), truth_T, ignore_index=NO_LABEL, reduction="none"
    )


def add_word_task():
    """Add the kind to both tables."""
    TASKS.append(WordTask)
    OBJECTIVES[WordTask] = Objective(of_labels=word_losses, of_teachers=None)


def remove_word_task():
    TASKS.remove(WordTask)
    del OBJECTIVES[WordTask]
