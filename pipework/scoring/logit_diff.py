"""Compare the logits of an engine with the checkpoint's.

Shapes: X comparisons, one for each row of an input in each of its batches; N inputs; C logits; U
different rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.engine_record import Precision, Tolerance
from pipework.tasks.change import PredictionChange
from pipework.tasks.outputs import Indices, Outputs, offsets_of
from pipework.tasks.task import Task

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
BOUND_PERCENTILE = 99  # the error bound holds for this percentage of the inputs
COMPARED_BAND_INPUTS = 8  # a length band with fewer inputs is not compared
STANDARD_ERRORS = 2  # of a mean over few inputs, in favour of the engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Breach:
    """A limit of the tolerance that does not hold: its name, the measured and the allowed value.

    Differences are in logits, not in units.
    """

    limit: str
    found: float
    allowed: float


def describe_derived(breaches: Sequence[Breach], precision: Precision) -> str:
    """Return the values of the limits by class and length, and the settings that they follow."""
    return "".join(
        f", {breach.limit} {breach.found:.3g} (limit {breach.allowed:.3g}, see the export setting "
        f"tolerances.{precision}.{'bias_ratio' if breach.limit == 'bias' else 'error_ratio'})"
        for breach in breaches
        if breach.limit == "bias" or breach.limit.startswith("rms")
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Logits of checkpoint and engine, [X, C], and the index of the input of each row, [X].

    The difference to a logit that is NaN or infinite is infinite, so that it exceeds any limit.

    Attributes:
        lengths_X: tokens of the input of each row, [X].
        row_X: the number of the row among the rows of all inputs, [X]; None if each input
            has one row.
        labelled: number of inputs whose predictions are compared; the predictions of later inputs,
            random sequences of tokens, mean nothing. None for all.
    """

    task: Task
    expected_XC: Logits
    found_XC: Logits
    input_X: NDArray[np.int64]
    lengths_X: NDArray[np.int64]
    labelled: int | None = None
    row_X: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        expected: Outputs,
        found: Outputs,
        inputs: Indices,
        lengths: Indices,
        labelled: int | None = None,
    ) -> "Comparison":
        """Compare the outputs of inputs in batches.

        Args:
            task: the task.
            expected: outputs of the checkpoint.
            found: outputs of the engine, for the same inputs in the same order.
            inputs: the number of each input, which has more than one batch.
            lengths: tokens of each input.
            labelled: see the class.
        """
        numbers, first = np.unique(inputs, return_index=True)
        starts = np.zeros(int(numbers.max()) + 1, np.int64)
        starts[numbers] = offsets_of(expected.counts[first])[:-1]
        place_X = np.arange(len(expected.values)) - expected.offsets[expected.inputs]
        return cls(
            task=task,
            expected_XC=expected.values,
            found_XC=found.values,
            input_X=inputs[expected.inputs],
            lengths_X=lengths[expected.inputs],
            labelled=labelled,
            row_X=starts[inputs[expected.inputs]] + place_X,
        )

    @cached_property
    def _signed(self) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            difference_XC = self.found_XC.astype(np.float64) - self.expected_XC
        return np.nan_to_num(difference_XC, nan=np.inf, posinf=np.inf, neginf=np.inf)

    @cached_property
    def differences(self) -> Floats:
        """Absolute differences, [X, C]."""
        return np.abs(self._signed)

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        """The first comparison of each row, [U]."""
        return np.unique(self._rows, return_index=True)[1]

    @property
    def _rows(self) -> NDArray[np.int64]:
        return self.input_X if self.row_X is None else self.row_X

    @property
    def _first_labelled(self) -> NDArray[np.intp]:
        """The first comparison of each row of the inputs with compared predictions."""
        return self._first[self._compared[self._first]]

    @property
    def _compared(self) -> NDArray[np.bool_]:
        """Whether the predictions of a row are compared, [X]."""
        return np.asarray(self.input_X < len(self.flipped))

    @property
    def bias(self) -> Floats:
        """The size of the mean signed difference of each class, [C], less `STANDARD_ERRORS`.

        Each input with compared predictions counts once.
        """
        mean_C, error_C = _mean(self._signed[self._first_labelled])
        return np.asarray(np.maximum(np.abs(mean_C) - STANDARD_ERRORS * error_C, 0))

    @property
    def rms(self) -> Floats:
        """The root mean square difference of each class, [C], of the inputs of `bias`."""
        squares_NC = np.square(self._signed[self._first_labelled])
        return np.asarray(np.sqrt(squares_NC.mean(axis=0)))

    def band_rms(self, start: int, end: int, standard_errors: float = -STANDARD_ERRORS) -> Floats:
        """Return the root mean square difference of each class, [C], of inputs of similar length.

        These have more than `start` and at most `end` tokens, and each counts once. 0 if they are
        too few. The mean square is increased by a number of standard errors.
        """
        lengths_N = self.lengths_X[self._first]
        inside_N = (lengths_N > start) & (lengths_N <= end)
        if inside_N.sum() < COMPARED_BAND_INPUTS:
            return np.zeros(self.found_XC.shape[1])
        mean_C, error_C = _mean(np.square(self._signed[self._first[inside_N]]))
        return np.asarray(np.sqrt(np.maximum(mean_C + standard_errors * error_C, 0)))

    def change(self, target_range: float) -> PredictionChange:
        """Return how far the predictions of the inputs with compared labels changed.

        Args:
            target_range: range of the targets of a regression; ignored for labels.
        """
        flips = int(self.flipped.sum())
        compared_X = self._compared
        return PredictionChange(
            argmax_agreement=1 - flips / len(self.flipped),
            flips=flips,
            inputs=len(self.flipped),
            max_change=self.task.max_change(
                self.expected_XC[compared_X], self.found_XC[compared_X], target_range
            ),
            target_range=None if self.task.has_labels else target_range,
        )

    @cached_property
    def max_differences(self) -> Floats:
        """The largest difference in each row, [X]."""
        return np.asarray(self.differences.max(axis=1))

    @property
    def unit(self) -> float:
        """The unit of difference limits, see `pipework.run_folder.engine_record.Tolerance`."""
        return self.task.difference_unit(self.expected_XC)

    @property
    def max_rel(self) -> float:
        """The largest difference relative to the logit, or to one unit if that is larger."""
        return float((self.differences / np.maximum(np.abs(self.expected_XC), self.unit)).max())

    @property
    def max_kl(self) -> float:
        """The largest Kullback-Leibler divergence of the probabilities, in nats."""
        with np.errstate(invalid="ignore", over="ignore"):
            before = self.task.log_probabilities(self.expected_XC)
            after = self.task.log_probabilities(self.found_XC)
            kl_X = (np.exp(before) * (before - after)).sum(axis=(1, 2))
        return float(np.clip(np.nan_to_num(kl_X, nan=np.inf, posinf=np.inf), 0, None).max())

    @cached_property
    def flipped_labels(self) -> NDArray[np.bool_]:
        """The labels predicted by only one of the two, [X, C]; none for a regression."""
        with np.errstate(invalid="ignore", over="ignore"):
            labels = (
                self.task.predicted_labels(logits_XC)
                for logits_XC in (self.expected_XC, self.found_XC)
            )
            return np.asarray(np.not_equal(*labels))

    @cached_property
    def flipped(self) -> NDArray[np.bool_]:
        """Whether the labels of an input changed in at least one batch, [labelled]."""
        changed_X = np.asarray(self.flipped_labels.any(axis=1), np.float64)
        return np.asarray(self.max_per_input(changed_X)[: self.labelled] > 0)

    @property
    def flips_outside(self) -> int:
        """Number of inputs whose label changed over a margin larger than the error bound."""
        outside_X = ~(self._margins <= self.error_bound)  # True for NaN
        outside_N = self.max_per_input(outside_X.astype(np.float64))[: self.labelled]
        return int((outside_N > 0).sum())

    @property
    def error_bound(self) -> float:
        """How far a margin moves in all but the rarest inputs."""
        # The margin of a flip is at most the sum of its two errors, so a bound from the largest
        # difference would allow every flip. The percentile with method "lower" is at most the
        # second largest value: the worst input cannot raise it.
        max_N = self.max_per_input(self.max_differences)[: self.labelled]
        return self.task.logits_per_margin * float(
            np.percentile(max_N, BOUND_PERCENTILE, method="lower")
        )

    @cached_property
    def _margins(self) -> Floats:
        """The checkpoint's margin of each changed label, [X]; 0 for unchanged labels."""
        return self.task.margins(self.expected_XC, self.found_XC, self.flipped_labels)

    def breaches(
        self, tolerance: Tolerance, *, unit: float | None = None, score_drop: float = 0.0
    ) -> tuple[Breach, ...]:
        """Return the limits that do not hold; differences have `unit`, or else `self.unit`."""
        unit, inputs = unit or self.unit, len(self.flipped)
        limits = [
            ("max_abs", float(self.max_differences.max()), tolerance.max_abs * unit),
            ("mean_abs", float(self.differences.mean()), tolerance.mean_abs * unit),
            ("spread", self.spread, tolerance.spread * unit),
            ("flips", int(self.flipped.sum()) / inputs, tolerance.flips),
            ("flips_outside", self.flips_outside / inputs, tolerance.flips_outside),
            ("score_drop", score_drop, tolerance.score_drop),
        ]
        if tolerance.bias is not None:
            limits.append(("bias", *_worst(self.bias, tolerance.bias, unit)))
        start = 0
        for band in tolerance.bands:
            rms = _worst(self.band_rms(start, band.longest), band.rms, unit)
            limits.append((f"rms of {start + 1} to {band.longest} tokens", *rms))
            start = band.longest
        return tuple(
            Breach(limit=limit, found=found, allowed=allowed)
            for limit, found, allowed in limits
            if not found <= allowed  # NaN exceeds every limit
        )

    def max_per_input(self, value_X: Floats) -> Floats:
        """Return the largest value of each input over its batches, [N]."""
        largest_N = np.full(int(self.input_X.max()) + 1, -np.inf)
        np.maximum.at(largest_N, self.input_X, value_X)
        return largest_N

    @property
    def spread(self) -> float:
        """The largest difference between the engine's outputs for an input in its batches."""
        highest_UC = np.full((int(self._rows.max()) + 1, self.found_XC.shape[1]), -np.inf)
        lowest_UC = -highest_UC
        numbers_XC = np.where(np.isfinite(self.found_XC), self.found_XC.astype(np.float64), np.nan)
        np.maximum.at(highest_UC, self._rows, numbers_XC)
        np.minimum.at(lowest_UC, self._rows, numbers_XC)
        return float(np.nan_to_num(highest_UC - lowest_UC, nan=np.inf, posinf=np.inf).max())


def _mean(values_NC: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard error of each class; NaN if a value is infinite."""
    with np.errstate(invalid="ignore"):
        return values_NC.mean(axis=0), values_NC.std(axis=0) / np.sqrt(len(values_NC))


def _worst(found_C: Floats, allowed: float | tuple[float, ...], unit: float) -> tuple[float, float]:
    """Return the value and the limit of the class whose value is farthest above its limit.

    If all values are below their limits, it is the class whose value is closest to its limit.
    """
    allowed_C = np.broadcast_to(unit * np.asarray(allowed, np.float64), found_C.shape)
    worst = int(np.argmax(found_C - allowed_C))  # the first NaN if there is one
    return float(found_C[worst]), float(allowed_C[worst])


def value_range(values: NDArray[np.generic]) -> float:
    """Return the difference of the largest and the smallest value; 1 if they are the same."""
    return float(np.ptp(np.asarray(values, np.float64))) or 1.0
