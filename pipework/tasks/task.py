"""The task of a model: its labels and metric, and all rules that depend on its kind.

Each kind is a subclass in its own module; `pipework.tasks.registry` lists them.

Shapes: N inputs, C classes (logits of an input), X comparisons of two outputs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pipework.errors import ConfigError, RunFolderError
from pipework.record import Record
from pipework.tasks.change import PredictionChange
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import DEFAULT_KIND, Metric, Words
from pipework.tasks.labels import Label
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Indices, Outputs, Places, offsets_of, one_row_of
from pipework.tasks.predictions import PredictedColumns, Prediction

Logits = NDArray[np.float32]
Truth = NDArray[np.generic]
Floats = NDArray[np.float64]
Scorer = Callable[[NDArray[np.int64]], float]
BINARY = 2  # labels
MIN_RELATIVE_UNIT = 0.03  # see difference_unit


class TargetScale(Record):
    """Mean and standard deviation of the train targets of a regression.

    The model is trained on (target - mean) / std. Its last layer contains the inverse, so the
    checkpoint and the engines return values on the scale of the targets.
    """

    mean: float
    std: float


def not_a_classifier(where: str = "this run") -> RunFolderError:
    """Return the error for a pretraining run where a classifier is required."""
    message = f"{where} is of pretraining: it has an encoder and no classifier"
    return RunFolderError(message, "fine-tune it first: pipe train CONFIG --set model.name=RUN")


class Task(Record):
    """The task of a model; `labels` are in the order of the logits.

    The methods of a kind that predicts nothing, such as pretraining, raise `not_a_classifier`.

    Attributes:
        kind: the kind, which the class determines.
        labels: names of the logits. A regression has one logit, named "score"; pretraining none.
        metric: the score that selects the best checkpoint.
        thresholds: of a multi-label task, one per label: a label is predicted if its probability
            is at least its threshold.
        positive: one of two labels for the metric f1; None is the second.
        min_scores: the lowest scores with a label, chosen by an export: empty, one number, or one
            for each label. They replace the thresholds.
        predicts: whether a model of this kind has predictions.
        has_labels: whether its predictions are labels with probabilities.
        many_labels: whether an input may have several labels.
        has_values: whether targets and predictions are numbers.
        fixed_labels: the labels if they do not depend on the data.
        fewest_labels: the smallest number of labels.
        rows_per_token: whether the outputs of an input have a row for each of its tokens.
        truth_type: type of the array of the labels of rows.
        problem_type: the name of the kind in a config of transformers.
        baseline: the linear model that a checkpoint is compared with; empty for none, and then
            there is no report without another baseline.
        change_columns: names of the changes of predictions in a table, see `change_cells`.
        logits_per_margin: how many logits determine a margin between two predictions.
    """

    kind: str = DEFAULT_KIND
    labels: tuple[str, ...]
    metric: Metric
    thresholds: tuple[float, ...] = ()
    positive: str | None = None
    min_scores: tuple[Annotated[float, Field(ge=0)], ...] = ()

    predicts: ClassVar[bool] = True
    has_labels: ClassVar[bool] = True
    many_labels: ClassVar[bool] = False
    has_values: ClassVar[bool] = False
    fixed_labels: ClassVar[tuple[str, ...] | None] = None
    fewest_labels: ClassVar[int] = 1
    rows_per_token: ClassVar[bool] = False
    truth_type: ClassVar[type[np.generic]] = np.int32
    problem_type: ClassVar[str] = ""
    baseline: ClassVar[str] = "a linear SVM"
    change_columns: ClassVar[tuple[str, ...]] = ("labels", "prob.")
    logits_per_margin: ClassVar[int] = 2

    @property
    def positive_index(self) -> int:
        """The index of the positive label of two."""
        return 1 if self.positive is None else self.labels.index(self.positive)

    @property
    def truth_shape(self) -> tuple[int, ...]:
        """The shape of the labels of a row in an array of `truth`."""
        return ()

    @property
    def tagged(self) -> Words:
        """The units that have a tag, see `TextEncoder.places`."""
        return Words.TOKENS

    @property
    def label_thresholds(self) -> dict[str, float] | None:
        """The threshold of each label; None for a kind without thresholds."""
        return None

    @property
    def trained(self) -> Self:
        """The task of the training, whose scores do not depend on a decision of an export."""
        return self.model_copy(update={"min_scores": ()})

    @property
    def limits(self) -> str:
        """When there is no label, or the interval of a value, as text; "" without them."""
        return ""

    @model_validator(mode="after")
    def _valid_labels(self) -> Self:
        labels = self.labels
        if len(set(labels)) != len(labels) or bool(labels) is not self.predicts:
            message = f"expected distinct labels, and none for pretraining; found {labels}"
            raise ValueError(message)
        if len(self.min_scores) not in (0, 1, len(labels)):
            message = f"expected one of min_scores, or one for each label: {self.min_scores}"
            raise ValueError(message)
        two = len(labels) == BINARY
        if self.metric is Metric.F1 and not two:
            message = f"the metric f1 needs two labels, found {len(labels)}"
            raise ValueError(message)
        if self.positive is not None and not (two and self.positive in labels):
            message = f"expected positive to be one of two labels, found {self.positive!r}"
            raise ValueError(message)
        return self

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the metrics that apply to these labels; the first is the default."""
        raise NotImplementedError

    @classmethod
    def check_metric(cls, metric: Metric, labels: Sequence[str]) -> None:
        """Check that a metric applies to these labels.

        Raises:
            ConfigError: it does not apply.
        """
        known = cls.applicable_metrics(labels)
        if metric not in known:
            kind = cls.model_fields["kind"].default
            message = f"task.metric {metric} does not apply to a {kind} task with these labels"
            raise ConfigError(message, f"set it to one of {', '.join(known)}")

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return the label of a row.

        Args:
            value: the cell of the label.
            separator: separates several labels in a cell.
            vector: names of the positions of a list of 0 and 1.

        Raises:
            InputError: the value is not a label of this kind.
        """
        raise NotImplementedError

    @classmethod
    def agreed(cls, answers: Sequence[object]) -> object:
        """Return the label from the answers of several annotators; None if they do not agree.

        It is the most frequent answer, unless another one is as frequent; of several labels those
        that more than half of the annotators gave; the median of numbers.
        """
        (first, most), *others = Counter(map(str, answers)).most_common(2)
        if others and others[0][1] == most:
            return None
        return next(answer for answer in answers if str(answer) == first)

    @classmethod
    def fit_label(cls, label: Label, text: str) -> Label:
        """Return the label of a row as its text requires.

        Raises:
            InputError: the label does not fit the text.
        """
        return label

    @classmethod
    def logit_names(cls, names: Sequence[str]) -> tuple[str, ...]:
        """Return the labels of a task, the names of its logits, from the names in the data."""
        return tuple(names)

    @classmethod
    def data_names(cls, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the names in the data from the labels of a task, see `logit_names`."""
        return tuple(labels)

    def truth(self, rows: Sequence[tuple[str, Label | None]]) -> Truth:
        """Return the labels of rows as an array of `truth_type`.

        Args:
            rows: file and line of each row, for errors, and its label.

        Raises:
            DataError: a row has no label, or a label that the model does not have.
        """
        raise not_a_classifier()

    def token_truth(
        self, rows: Sequence[tuple[str, Label | None]], places: Sequence[Places], width: int
    ) -> Truth:
        """Return the labels of rows as `truth` does, for a task with rows for each token.

        Args:
            rows: file and line of each row, for errors, and its label.
            places: the tokens of each row, at most `width`.
            width: the largest number of tokens.
        """
        return self.truth(rows)

    def window_truth(
        self, truth: Truth, counts_N: Sequence[int], lengths_R: Sequence[int], width: int
    ) -> Truth:
        """Return the labels of windows from those of texts.

        Args:
            truth: the labels of texts; of a task with rows for each token, of all windows of each.
            counts_N: the number of windows of each text.
            lengths_R: the number of tokens of each window, at most `width`.
            width: see `token_truth`.
        """
        return truth.repeat(counts_N, axis=0)

    def row_offsets(self, lengths_N: Sequence[int]) -> Indices:
        """Return the offsets of the rows of inputs with these numbers of tokens, see `Outputs`."""
        if self.rows_per_token:
            return offsets_of(np.asarray(lengths_N, np.int64))
        return one_row_of(lengths_N)

    def probabilities(self, logits_NC: Logits) -> Logits:
        """Convert logits [N, C] to scores [N, C]."""
        raise not_a_classifier()

    def log_probabilities(self, logits_NC: Logits) -> Floats:
        """Return log-probabilities, float64 [N, distributions of an input, their values].

        A kind without probabilities has no distribution.
        """
        raise not_a_classifier()

    def predicted_labels(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return which labels are predicted, [N, C]; a regression has none."""
        raise not_a_classifier()

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the prediction for each input; `scores` holds the `top_k` best, or all."""
        raise not_a_classifier()

    def abstained(self, outputs: Outputs) -> int:
        """Return for how many inputs the model gives no label, because their scores are too low."""
        return 0

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return the predictions as the columns `predicted_label` and `predicted_score`.

        They have what `decode` returns, but are made for many rows at a time. A kind without labels
        has no label. With several labels, label and score are lists, best label first.
        """
        raise not_a_classifier()

    def evaluate(self, outputs: Outputs, truth: Truth) -> Evaluation:
        """Score outputs against the labels of `truth`.

        In the macro average, a class without correct predictions counts with F1 = 0, as in
        scikit-learn with zero_division=0. Classes without true and predicted rows are left out.
        """
        raise not_a_classifier()

    def scorer(self, outputs: Outputs, truth: Truth) -> Scorer:
        """Return a function that scores inputs as `evaluate` does, given their indices.

        Indices may repeat. Labels are predicted only once.
        """
        raise not_a_classifier()

    def with_thresholds(self, logits_NC: Logits, truth: Truth) -> Self:
        """Return the task with the thresholds that labelled rows give; itself if it has none."""
        return self

    def fit_calibration(
        self, logits_NC: Logits, truth: Truth, *, offsets: bool = True
    ) -> LogitScale | None:
        """Return the scale whose probabilities agree best with labelled rows.

        Thresholds must be chosen after it. Without `offsets`, logits are only multiplied. None if
        there are too few rows, or the kind has no probabilities.
        """
        return None

    def confidence(self, logits_NC: Logits, truth: Truth) -> Floats:
        """Return how confident each wrong prediction is, [N]; negative for right predictions."""
        raise not_a_classifier()

    def true_labels(self, truth: Truth) -> NDArray[np.bool_]:
        """Return the labels of rows, [N, C]."""
        raise not_a_classifier()

    def label_counts(self, truth: Truth) -> NDArray[np.int64]:
        """Return how often each label occurs, [C]."""
        return np.asarray(self.true_labels(truth).sum(axis=0), np.int64)

    def constant(self, truth: Truth) -> tuple[str, Floats]:
        """Return the best prediction that is the same for every row: its name and logits [C]."""
        raise not_a_classifier()

    def difference_unit(self, logits_NC: Logits) -> float:
        """Return the unit in which differences of logits are compared with a limit.

        It is 1, because softmax and sigmoid fix the scale of a logit; but logits that are usually
        above 33 have larger rounding errors, and a larger unit.
        """
        finite_NC = np.where(np.isfinite(logits_NC), logits_NC, 0)
        usual = float(np.median(np.abs(finite_NC).max(axis=1)))
        return max(1.0, MIN_RELATIVE_UNIT * usual)

    def margins(
        self, expected_XC: Logits, found_XC: Logits, flipped_XC: NDArray[np.bool_]
    ) -> Floats:
        """Return the margin of each changed label in the expected logits, [X]; 0 if unchanged."""
        raise not_a_classifier()

    def max_change(self, expected_XC: Logits, found_XC: Logits, target_range: float) -> float:
        """Return the largest change of a prediction.

        That is of a probability; for a regression, of a value as a share of `target_range`.
        """
        before_XC = self.probabilities(np.nan_to_num(expected_XC))
        after_XC = self.probabilities(np.nan_to_num(found_XC))
        return float(np.abs(after_XC - before_XC).max())

    def changed_inputs(self, before: Outputs, after: Outputs, most: int) -> NDArray[np.intp]:
        """Return the inputs whose labels changed; for a regression the `most` that moved most."""
        labels = (self.predicted_labels(outputs.values) for outputs in (before, after))
        changed_R = np.asarray(np.not_equal(*labels).any(axis=1), np.float64)
        return np.flatnonzero(before.max_per_input(changed_R) > 0)

    def allowed_change(self, *, probability: float, value_range: float) -> float:
        """Return the limit that applies to `max_change`."""
        return probability

    def describe_change(self, change: PredictionChange) -> str:
        """Return how far the predictions changed, as text."""
        labels = 1 - change.argmax_agreement
        return f"{labels:.2%} of the labels, probabilities by up to {change.max_change:.2g}"

    def describe_limits(self, *, labels: float, probability: float, value_range: float) -> str:
        """Return the limits of changes, as text."""
        return f"{labels:.3%} of the labels, probabilities by up to {probability:.3g}"

    def change_cells(self, change: PredictionChange) -> tuple[str, ...]:
        """Return the values of `change_columns`."""
        return f"{1 - change.argmax_agreement:.2%}", f"{change.max_change:.3f}"

    def describe_decision(self) -> str:
        """Return how labels are decided, as text: "3 labels, softmax"."""
        raise not_a_classifier()

    def describe_output(self) -> str:
        """Return the output of the model for its model card, with the names of the labels."""
        raise not_a_classifier()

    def label_text(self, prediction: Any) -> str:  # noqa: ANN401  (of this kind)
        """Return the label of a prediction for the tensor `label`; empty without labels."""
        return str(prediction.text_fields()[0])
