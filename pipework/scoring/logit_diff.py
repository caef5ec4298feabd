"""How far an engine's answers lie from the checkpoint's.

Shapes: X comparisons, one for each input in each of its batches; N inputs; C classes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.engine_record import Tolerance
from pipework.run_folder.task import Task, TaskKind, no_classifier
from pipework.scoring.predictions import THRESHOLD, given_labels, unit_of

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
RARE = 99  # per cent of the inputs that the error bound must hold for


@dataclass(frozen=True, kw_only=True, slots=True)
class Breach:
    """A limit of the tolerance by name, what was found, and what is allowed."""

    limit: str
    found: float
    allowed: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Logits of both, [X, C], and which input each row of them is of, [X], numbered from 0.

    A logit that is no number is infinitely far away, never "not more than the tolerance".
    """

    task: Task
    expected_XC: Logits
    found_XC: Logits
    input_X: NDArray[np.int64]

    @cached_property
    def each_apart(self) -> Floats:
        """Absolute differences, [X, C]."""
        with np.errstate(invalid="ignore", over="ignore"):
            apart_XC = np.abs(self.found_XC.astype(np.float64) - self.expected_XC)
        return np.nan_to_num(apart_XC, nan=np.inf, posinf=np.inf)

    @cached_property
    def apart(self) -> Floats:
        """The largest difference of each answer, [X]."""
        return np.asarray(self.each_apart.max(axis=1))

    @property
    def unit(self) -> float:
        """What limits of differences count in, see `pipework.run_folder.engine_record.Tolerance`."""
        return unit_of(self.expected_XC, self.task)

    @property
    def max_rel(self) -> float:
        """The largest difference relative to the logit, or to one unit where that is more."""
        return float((self.each_apart / np.maximum(np.abs(self.expected_XC), self.unit)).max())

    @property
    def max_kl(self) -> float:
        """The largest divergence of the engine's probabilities from the checkpoint's, in nats."""
        if self.task.kind is TaskKind.REGRESSION:
            return 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            before, after = (_log_odds(one, self.task) for one in (self.expected_XC, self.found_XC))
            kl_X = (np.exp(before) * (before - after)).sum(axis=(1, 2))
        return float(np.clip(np.nan_to_num(kl_X, nan=np.inf, posinf=np.inf), 0, None).max())

    @cached_property
    def flipped_labels(self) -> NDArray[np.bool_]:
        """Which labels were given by one of the two only, [X, C]; a regression gives none."""
        with np.errstate(invalid="ignore", over="ignore"):
            given = (given_labels(one, self.task) for one in (self.expected_XC, self.found_XC))
            return np.asarray(np.not_equal(*given))

    @cached_property
    def flipped(self) -> NDArray[np.bool_]:
        """Whether the labels of an input changed in some batch, [N]."""
        changed_X = np.asarray(self.flipped_labels.any(axis=1), np.float64)
        return np.asarray(self.largest(changed_X) > 0)

    @property
    def flips_outside(self) -> int:
        """How many inputs changed their label over a margin larger than the error bound."""
        outside_X = ~(self._margins <= self.error_bound)  # so is what is no number
        return int((self.largest(outside_X.astype(np.float64)) > 0).sum())

    @property
    def error_bound(self) -> float:
        """How far a margin moves in all but the rarest inputs.

        A flip always has a margin of at most the sum of its own two errors, so a bound made of
        the largest difference would allow every flip. This one is made of all inputs, and the
        worst of them cannot raise it: with method "lower" it is at most the second largest.
        """
        moving = 1 if self.task.kind is TaskKind.MULTI_LABEL else 2
        own_N = self.largest(self.apart)
        return moving * float(np.percentile(own_N, RARE, method="lower"))

    @cached_property
    def _margins(self) -> Floats:
        """How far a changed label was from changing, in the checkpoint's logits, [X]; else 0."""
        match self.task.kind:
            case TaskKind.SINGLE_LABEL:
                order = self.expected_XC, self.found_XC
                rows = np.arange(len(self.input_X))
                had_X, got_X = (self.expected_XC[rows, one.argmax(axis=1)] for one in order)
                with np.errstate(invalid="ignore"):  # infinity less infinity
                    return np.asarray(had_X.astype(np.float64) - got_X)
            case TaskKind.MULTI_LABEL:
                low, high = np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).eps
                given = self.task.thresholds or [THRESHOLD] * len(self.task.labels)
                threshold_C = np.clip(given, low, high)
                apart_XC = np.abs(self.expected_XC - np.log(threshold_C / (1 - threshold_C)))
                return np.asarray(np.where(self.flipped_labels, apart_XC, 0).max(axis=1))
            case TaskKind.REGRESSION:
                return np.zeros(len(self.input_X))
            case TaskKind.PRETRAIN:
                raise no_classifier()

    def breaches(
        self, tolerance: Tolerance, *, unit: float | None = None, score_drop: float = 0.0
    ) -> tuple[Breach, ...]:
        """Return the limits that do not hold; differences count in `unit`, or in `self.unit`."""
        unit, inputs = unit or self.unit, len(self.flipped)
        measured = {
            "max_abs": float(self.apart.max()) / unit,
            "mean_abs": float(self.each_apart.mean()) / unit,
            "spread": self.spread / unit,
            "flips": int(self.flipped.sum()) / inputs,
            "flips_outside": self.flips_outside / inputs,
            "score_drop": score_drop,
        }
        held = ((limit, found, getattr(tolerance, limit)) for limit, found in measured.items())
        return tuple(
            Breach(limit=limit, found=found, allowed=allowed)
            for limit, found, allowed in held
            if not found <= allowed  # so that what is no number breaks every limit
        )

    def largest(self, value_X: Floats) -> Floats:
        """Return the largest value of each input over its batches, [N]."""
        largest_N = np.full(int(self.input_X.max()) + 1, -np.inf)
        np.maximum.at(largest_N, self.input_X, value_X)
        return largest_N

    @property
    def spread(self) -> float:
        """The largest difference between two answers of the engine to one input."""
        highest_NC = np.full((int(self.input_X.max()) + 1, self.found_XC.shape[1]), -np.inf)
        lowest_NC = -highest_NC
        numbers_XC = np.where(np.isfinite(self.found_XC), self.found_XC.astype(np.float64), np.nan)
        np.maximum.at(highest_NC, self.input_X, numbers_XC)
        np.minimum.at(lowest_NC, self.input_X, numbers_XC)
        return float(np.nan_to_num(highest_NC - lowest_NC, nan=np.inf, posinf=np.inf).max())


def _log_odds(logits_XC: Logits, task: Task) -> Floats:
    """Return log-probabilities: [X, 1, C] of one label, [X, C, 2] of several, yes and no."""
    logits = logits_XC.astype(np.float64)
    if task.kind is TaskKind.MULTI_LABEL:
        both = (-np.logaddexp(0, -logits), -np.logaddexp(0, logits))
        return np.asarray(np.stack(both, axis=2))
    highest = logits.max(axis=1, keepdims=True)
    total = highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    return np.asarray((logits - total)[:, None])
