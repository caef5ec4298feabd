"""Several heads on one encoder, with a task each; the logits of all heads are side by side.

`pipe combine` makes such models.

Shapes: N inputs, R rows of all inputs, C logits of all heads, X comparisons of two outputs, W
numbers that hold the labels of a row for all heads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pipework.errors import DataError, InputError
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Metric, Words
from pipework.tasks.labels import Label
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Indices, LocatedOutputs, Outputs, Places
from pipework.tasks.predictions import (
    HeadPredictions,
    PredictedColumns,
    Prediction,
    without_marks,
)
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Floats, Logits, Scorer, Task, Truth
from pipework.tasks.tokens import TokenTask

HEAD_NAME = re.compile(r"[\w-]+")
IMPOSSIBLE = -1e9  # the log-probability of a value that a distribution does not have
HeadTask = Annotated[SingleLabelTask | MultiLabelTask | TokenTask, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadPart:
    """The part of outputs that belongs to a head, and the labels of the inputs that have one.

    Attributes:
        name: the name of the head.
        task: its task.
        outputs: its outputs.
        truth: its labels of the inputs `labelled`.
        labelled: indices of the inputs with a label for this head.
    """

    name: str
    task: Task
    outputs: Outputs
    truth: Truth
    labelled: NDArray[np.intp]

    @property
    def of_labelled(self) -> Outputs:
        """The outputs of the labelled inputs."""
        return self.outputs.take(self.labelled)


class HeadsTask(Task):
    """Heads with a task each. A label is `HEAD/LABEL`; the metric is the mean of their metrics.

    An input may lack the label of a head; then it does not count for the score of this head. The
    labels of a row are a JSON object: `{"topic": "sport", "urgent": ["yes"]}`.
    """

    kind: Literal["heads"] = "heads"
    heads: dict[str, HeadTask]
    truth_type: ClassVar[type[np.generic]] = np.float32
    baseline: ClassVar[str] = ""

    @classmethod
    def of(cls, heads: Mapping[str, HeadTask]) -> "HeadsTask":
        """Return the task of these heads."""
        labels = tuple(f"{name}/{label}" for name, task in heads.items() for label in task.labels)
        per_token = any(task.rows_per_token for task in heads.values())
        kind = TokenHeadsTask if per_token else HeadsTask
        return kind(labels=labels, metric=Metric.MEAN_SCORE, heads=dict(heads))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [name for name in self.heads if not HEAD_NAME.fullmatch(name)]
        labels = sum(len(task.labels) for task in self.heads.values())
        per_token = any(task.rows_per_token for task in self.heads.values())
        if names or labels != len(self.labels) or per_token is not self.rows_per_token:
            message = "expected the labels of all heads, and names of letters, digits, - and _"
            raise ValueError(message)
        return self

    @property
    def truth_shape(self) -> tuple[int, ...]:
        """The labels of all heads."""
        return (-1,)

    @property
    def tagged(self) -> Words:
        """The words of the heads for spans; see `Task`."""
        tagged = (task.tagged for task in self.heads.values() if task.rows_per_token)
        return next(tagged, Words.TOKENS)

    @property
    def limits(self) -> str:
        """The lowest scores of each head; see `Task`."""
        limits = {name: task.limits for name, task in self.heads.items()}
        return "; ".join(f"{name}: {text}" for name, text in limits.items() if text)

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the mean of the metrics of the heads."""
        return (Metric.MEAN_SCORE,)

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return the labels by head as JSON; see `Task`."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, dict):
            message = f"expected an object with the label of each head, found {value!r:.50}"
            raise InputError(message, 'for example {"topic": "sport"}; a head may be left out')
        return json.dumps(found, ensure_ascii=False)

    def _columns(self) -> Iterator[tuple[str, HeadTask, slice]]:
        """Yield the name, the task and the logits of each head."""
        start = 0
        for name, task in self.heads.items():
            stop = start + len(task.labels)
            yield name, task, slice(start, stop)
            start = stop

    def _part(self, task: Task, columns: slice, outputs: Outputs) -> Outputs:
        """Return the outputs of a head. One row for each input is the row of its first token."""
        values = outputs.values[:, columns]
        if task.rows_per_token and isinstance(outputs, LocatedOutputs):
            return LocatedOutputs(values, outputs.offsets, outputs.places, outputs.texts)
        if task.rows_per_token or not self.rows_per_token:
            return Outputs(values, outputs.offsets)
        # An input without tokens has the logits 0.
        padded = np.concatenate((values, np.zeros((1, values.shape[1]), np.float32)))
        first_N = np.where(outputs.counts > 0, outputs.offsets[:-1], len(values))
        return Outputs.of(padded[first_N])

    def head(self, name: str, outputs: Outputs) -> Outputs:
        """Return the outputs of a head."""
        found = {head: (task, columns) for head, task, columns in self._columns()}
        return self._part(*found[name], outputs)

    def parts(self, outputs: Outputs, truth: Truth) -> Iterator[HeadPart]:
        """Yield the part of each head that has labels."""
        truth_NW, start = np.asarray(truth, np.float32), 0
        for (name, task, columns), width in zip(
            self._columns(), self._widths(truth_NW.shape[1]), strict=True
        ):
            labels = truth_NW[:, start : start + width]
            start += width
            labelled = np.flatnonzero(~np.isnan(labels[:, 0]))
            if len(labelled):
                chosen = labels[labelled].astype(task.truth_type)
                yield HeadPart(
                    name=name,
                    task=task,
                    outputs=self._part(task, columns, outputs),
                    truth=chosen if task.truth_shape else chosen[:, 0],
                    labelled=labelled,
                )

    def _widths(self, total: int) -> list[int]:
        """Return how many of all numbers of a row hold the labels of each head."""
        fixed = [
            len(task.scheme.types) if isinstance(task, TokenTask) else max(1, *task.truth_shape, 1)
            for task in self.heads.values()
        ]
        spans = [isinstance(task, TokenTask) for task in self.heads.values()]
        tokens = (total - sum(fixed)) // max(1, sum(spans))
        return [width + tokens * has for width, has in zip(fixed, spans, strict=True)]

    def truth(self, rows: Sequence[tuple[str, Label | None]]) -> Truth:
        """Return the labels of all heads, float32 [N, W]; NaN for a head without a label."""
        return self.token_truth(rows, (), 0)

    def token_truth(
        self, rows: Sequence[tuple[str, Label | None]], places: Sequence[Places], width: int
    ) -> Truth:
        """Return the labels as `truth` does, with the tags of tokens; see `Task`."""
        given = [self._given(at, label) for at, label in rows]
        parts = list[NDArray[np.float32]]()
        for name, task in self.heads.items():
            labelled = [number for number, labels in enumerate(given) if name in labels]
            chosen = [
                (f"{rows[number][0]}, head {name}", given[number][name]) for number in labelled
            ]
            numbers = len(task.labels) if task.many_labels else 1
            if isinstance(task, TokenTask):
                numbers = width + len(task.scheme.types)
            part = np.full((len(rows), numbers), np.nan, np.float32)
            if chosen:
                located = [places[number] for number in labelled] if places else []
                found = task.token_truth(chosen, located, width)
                part[labelled] = np.asarray(found, np.float32).reshape(len(labelled), numbers)
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def _given(self, at: str, label: Label | None) -> dict[str, Label]:
        """Return the labels of a row by head; null is no label."""
        values = json.loads(str(label))
        if unknown := [*(values.keys() - self.heads.keys())]:
            message = f"{at} has a label for the head {min(unknown)!r}, which the model lacks"
            raise DataError(message, f"known heads: {', '.join(self.heads)}")
        given = {}
        for name, value in values.items():
            try:
                if value is not None:
                    given[name] = self.heads[name].parse_label(value, None)
            except InputError as error:
                message = f"{at}, head {name}: {error}"
                raise DataError(message, error.hint) from error
        return given

    def _joined(self, name: str, logits: Logits) -> NDArray[Any]:
        """Return the results of a method of each task for its logits, side by side."""
        return np.concatenate(
            [getattr(task, name)(logits[:, columns]) for _, task, columns in self._columns()],
            axis=1,
        )

    def probabilities(self, logits_NC: Logits) -> Logits:
        """Return the scores of all heads."""
        return self._joined("probabilities", logits_NC)

    def predicted_labels(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return the labels of all heads, [N, C]."""
        return self._joined("predicted_labels", logits_NC)

    def log_probabilities(self, logits_NC: Logits) -> Floats:
        """Return the distributions of all heads, padded with impossible values."""
        found = [
            task.log_probabilities(logits_NC[:, columns]) for _, task, columns in self._columns()
        ]
        longest = max(part.shape[2] for part in found)
        padded = [
            np.pad(part, ((0, 0), (0, 0), (0, longest - part.shape[2])), constant_values=IMPOSSIBLE)
            for part in found
        ]
        return np.concatenate(padded, axis=1)

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the prediction of each head; see `Task`."""
        found = {
            name: task.decode(self._part(task, columns, outputs), top_k)
            for name, task, columns in self._columns()
        }
        return [
            HeadPredictions(heads=dict(zip(found, one, strict=True)))
            for one in zip(*found.values(), strict=True)
        ]

    def abstained(self, outputs: Outputs) -> int:
        """Return the largest number of inputs to which a head gives no label."""
        return max(
            task.abstained(self._part(task, columns, outputs))
            for _, task, columns in self._columns()
        )

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return the columns of each head, `HEAD.predicted_label`; see `Task`."""
        return {
            f"{name}.{column}": values
            for name, task, columns in self._columns()
            for column, values in task.columns(self._part(task, columns, outputs)).items()
        }

    def evaluate(self, outputs: Outputs, truth: Truth) -> Evaluation:
        """Score each head on the inputs with a label for it; see `Task`."""
        found = {
            part.name: part.task.evaluate(part.of_labelled, part.truth)
            for part in self.parts(outputs, truth)
        }
        if not found:
            message = "no row has a label for a head"
            raise DataError(message, 'write the label of a row as {"HEAD": LABEL}')
        scores = [one.score for one in found.values()]
        return Evaluation(
            rows=len(outputs),
            metric=self.metric,
            scores={self.metric: float(np.mean(scores))},
            classes=tuple(
                report.model_copy(update={"label": f"{name}/{report.label}"})
                for name, one in found.items()
                for report in one.classes
            ),
        )

    def scorer(self, outputs: Outputs, truth: Truth) -> Scorer:
        """Return a function that scores inputs; see `Task`."""
        scorers = list[tuple[Scorer, NDArray[np.intp]]]()
        for part in self.parts(outputs, truth):
            places_N = np.full(len(outputs), -1)
            places_N[part.labelled] = np.arange(len(part.labelled))
            scorers.append((part.task.scorer(part.of_labelled, part.truth), places_N))

        def score(rows: Indices) -> float:
            chosen = ((scorer, places_N[rows]) for scorer, places_N in scorers)
            return float(np.mean([scorer(some[some >= 0]) for scorer, some in chosen]))

        return score

    def difference_unit(self, logits_NC: Logits) -> float:
        """Return the smallest unit of a head."""
        return min(
            task.difference_unit(logits_NC[:, columns]) for _, task, columns in self._columns()
        )

    def margins(
        self, expected_XC: Logits, found_XC: Logits, flipped_XC: NDArray[np.bool_]
    ) -> Floats:
        """Return the largest margin of a changed label; see `Task`."""
        margins = np.zeros(len(expected_XC))
        for _, task, columns in self._columns():
            flipped = flipped_XC[:, columns]
            found = task.margins(expected_XC[:, columns], found_XC[:, columns], flipped)
            margins = np.where(flipped.any(axis=1), np.maximum(margins, found), margins)
        return margins

    def changed_inputs(self, before: Outputs, after: Outputs, most: int) -> NDArray[np.intp]:
        """Return the inputs of which the prediction of a head changed; see `Task`."""
        changed = [
            task.changed_inputs(
                self._part(task, columns, before), self._part(task, columns, after), most
            )
            for _, task, columns in self._columns()
        ]
        return np.unique(np.concatenate(changed)).astype(np.intp)

    def has_spans(self, outputs: Outputs) -> NDArray[np.bool_]:
        """Return which inputs may have spans, [N]; see `TokenTask`."""
        return outputs.max_per_input(self.in_spans(outputs).astype(np.float64)) > 0

    def in_spans(self, outputs: Outputs) -> NDArray[np.bool_]:
        """Return which tokens are best in a span of a head, [R]."""
        found = np.zeros(len(outputs.values), np.bool_)
        for _, task, columns in self._columns():
            if isinstance(task, TokenTask):
                found |= task.in_spans(self._part(task, columns, outputs))
        return found

    def describe_decision(self) -> str:
        """Return the decision of each head."""
        return "; ".join(f"{name}: {task.describe_decision()}" for name, task in self.heads.items())

    def describe_output(self) -> str:
        """Return the output of each head."""
        return "; ".join(f"{name}: {task.describe_output()}" for name, task in self.heads.items())

    def label_text(self, prediction: Any) -> str:  # noqa: ANN401  (of this kind)
        """Return the predictions of all heads as JSON."""
        heads = {name: without_marks(head) for name, head in prediction.heads.items()}
        return json.dumps({"heads": heads}, ensure_ascii=False)


class TokenHeadsTask(HeadsTask):
    """Heads of which at least one finds spans, so that an input has a row for each of its tokens.

    The logits of a head for whole texts are the same in all rows of an input.
    """

    kind: Literal["token_heads"] = "token_heads"  # type: ignore[assignment]
    rows_per_token: ClassVar[bool] = True
