"""How well probabilities agree with how often they are right.

The expected calibration error (Guo et al. 2017, https://arxiv.org/abs/1706.04599) is computed with
bins of equal numbers of predictions. The noise of the bins makes it positive also for perfect
probabilities, so its interval combines the percentile and the basic bootstrap (Efron and Tibshirani
1993), and starts at 0 if perfect probabilities would give such an error: the differences of
predictions and probabilities with random signs, one for all labels of an input, because labels
occur together (wild cluster bootstrap, Cameron, Gelbach and Miller 2008). The interval is
approximate: with few inputs it holds the true error in less than 95 % of draws.

Shapes: N inputs, D decisions of an input (one, or one for each label of a multi-label task), V
values of a decision, K predictions of all inputs, B bins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.engine_record import CalibrationChange
from pipework.tasks.evaluation import Calibration, CalibrationBin
from pipework.tasks.heads import HeadsTask
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import BINARY, Task

BINS, IN_BIN = 15, 20  # bins, and the fewest predictions of a bin
RESAMPLES, FEWEST_RESAMPLES = 400, 50
MAX_WORK = 10_000_000  # limits predictions x resamples, to about a second
MAX_PREDICTIONS = MAX_WORK // FEWEST_RESAMPLES
MAX_LOGITS = 10_000_000  # limits the memory, to about 350 MB
SEED = 0
Floats = NDArray[np.float64]


def both_calibrations(
    task: Task, outputs: Outputs, truth: NDArray[np.generic], scale: LogitScale | None
) -> dict[str, Calibration | None]:
    """Return the `calibration` of logits, and if they have a scale, also before it was applied.

    The names are the fields of `Evaluation`.
    """
    found = {"calibration": calibration(task, outputs, truth)}
    if scale is not None:
        found["uncalibrated"] = calibration(task, scale.undo(outputs), truth)
    return found


def calibration(task: Task, outputs: Outputs, truth: NDArray[np.generic]) -> Calibration | None:
    """Return the calibration of the scores.

    It concerns the probability of the predicted label; for a multi-label task that of each label,
    predicted or not. Of many inputs a sample is used, with at most MAX_PREDICTIONS predictions.

    Args:
        task: the task.
        outputs: the logits.
        truth: the labels, from `pipework.scoring.evaluation.label_array`.

    Returns:
        The calibration; None for a task without probabilities or with a row for each token, without
        inputs, and if a logit is not finite.
    """
    decisions = _Decisions.of(task, outputs, truth)
    if decisions is None:
        return None
    low, high = decisions.ranked.interval()
    return Calibration(
        error=decisions.ranked.error(),
        low=low,
        high=high,
        brier=decisions.brier,
        log_loss=decisions.log_loss,
        bins=decisions.ranked.bins(),
    )


def calibration_change(
    task: Task, before: Outputs, after: Outputs, truth: NDArray[np.generic]
) -> CalibrationChange | None:
    """Return the calibration of a checkpoint and of its engine; None as in `calibration`.

    Both use the bins of the checkpoint, so that a changed probability moves no other row to
    another bin.
    """
    reference = _Decisions.of(task, before, truth)
    engine = _Decisions.of(task, after, truth, reference)
    if reference is None or engine is None:
        return None
    return CalibrationChange(
        rows=len(before),
        reference=reference.ranked.error(),
        engine=engine.ranked.error(),
        brier_reference=reference.brier,
        brier_engine=engine.brier,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Decisions:
    """The predictions of inputs by their probability, with two scores of the probabilities."""

    ranked: "_Ranked"
    brier: float
    log_loss: float

    @classmethod
    def of(
        cls,
        task: Task,
        outputs: Outputs,
        truth: NDArray[np.generic],
        like: "_Decisions | None" = None,
    ) -> "_Decisions | None":
        """Return the decisions, in the order of `like`; None as in `calibration`."""
        logits_NC = outputs.values
        several = task.rows_per_token or isinstance(task, HeadsTask)
        if not task.has_labels or several or not len(outputs):
            return None
        if not np.isfinite(logits_NC).all():
            return None
        labels = logits_NC.shape[1]
        most = min(MAX_PREDICTIONS // (labels if task.many_labels else 1), MAX_LOGITS // labels)
        if len(outputs) > most:
            chosen_N = np.random.default_rng(SEED).permutation(len(outputs))[: max(1, most)]
            logits_NC, truth = logits_NC[chosen_N], truth[chosen_N]
        log_NDV = task.log_probabilities(logits_NC)
        true_NC = task.true_labels(truth)
        if task.many_labels:  # the first of two values is to have the label
            true_ND = np.where(true_NC, 0, 1)
            predicted_ND = np.zeros_like(true_ND)
        else:
            true_ND = true_NC.argmax(axis=1)[:, None]
            predicted_ND = log_NDV.argmax(axis=2)
        chance_NDV = np.exp(log_NDV)
        # The sum of (chance - hit)^2 over the values, without an array of hits.
        squared_ND = np.square(chance_NDV).sum(axis=2) - 2 * _at(chance_NDV, true_ND) + 1
        squared = float(squared_ND.mean())
        chance_ND, right_ND = _at(chance_NDV, predicted_ND), predicted_ND == true_ND
        order_K = _order(chance_ND) if like is None else like.ranked.order_K
        return cls(
            ranked=_Ranked.of(chance_ND, right_ND, order_K),
            brier=squared / 2 if log_NDV.shape[2] == BINARY else squared,
            log_loss=float(-_at(log_NDV, true_ND).mean()) + 0.0,  # no -0.0
        )


def _order(chance_ND: Floats) -> NDArray[np.intp]:
    """Return the order from low to high probabilities."""
    # Equal probabilities in random order: rows of a file are often sorted by label.
    random_K = np.random.default_rng(SEED).random(chance_ND.size)
    return np.lexsort((random_K, chance_ND.ravel()))


def _at(values_NDV: Floats, index_ND: NDArray[np.integer]) -> Floats:
    return np.asarray(np.take_along_axis(values_NDV, index_ND[..., None], axis=2)[..., 0])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ranked:
    """Predictions from low to high probabilities: 1 if right, and their inputs."""

    order_K: NDArray[np.intp]
    chance_K: Floats
    right_K: Floats
    input_K: NDArray[np.int64]

    @classmethod
    def of(
        cls, chance_ND: Floats, right_ND: NDArray[np.bool_], order_K: NDArray[np.intp]
    ) -> "_Ranked":
        return cls(
            order_K=order_K,
            chance_K=chance_ND.ravel()[order_K],
            right_K=right_ND.ravel()[order_K].astype(np.float64),
            input_K=order_K // chance_ND.shape[1],
        )

    def _sums(self, right_K: Floats, weights_K: Floats) -> Floats:
        """Return the sums of the probabilities and of the right predictions, and the size, [B]."""
        bins = int(np.clip(len(right_K) // IN_BIN, 1, BINS))
        before_K = np.cumsum(weights_K) - weights_K
        bin_K = (before_K * bins / weights_K.sum()).astype(np.int64).clip(max=bins - 1)
        columns = (self.chance_K * weights_K, right_K * weights_K, weights_K)
        return np.stack([np.bincount(bin_K, values_K, bins) for values_K in columns])

    def error(self, right_K: Floats | None = None, weights_K: Floats | None = None) -> float:
        """Return the error, also for other results or other weights of the predictions."""
        right_K = self.right_K if right_K is None else right_K
        weights_K = np.ones(len(right_K)) if weights_K is None else weights_K
        chance_B, right_B, size_B = self._sums(right_K, weights_K)
        return float(np.abs(chance_B - right_B).sum() / size_B.sum())

    def bins(self) -> tuple[CalibrationBin, ...]:
        """Return the bins."""
        return tuple(
            CalibrationBin(probability=chance / size, right=right / size, predictions=round(size))
            for chance, right, size in self._sums(self.right_K, np.ones(len(self.right_K))).T
        )

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the error; 0 to 1 for fewer inputs than a bin needs."""
        random = np.random.default_rng(SEED)
        inputs = int(self.input_K.max()) + 1
        if inputs < IN_BIN:
            return 0.0, 1.0
        differences_K = self.right_K - self.chance_K
        drawn = list[float]()
        perfect = list[float]()
        for _ in range(int(np.clip(MAX_WORK // len(differences_K), FEWEST_RESAMPLES, RESAMPLES))):
            times_N = np.bincount(random.integers(inputs, size=inputs), minlength=inputs)
            drawn.append(self.error(weights_K=times_N[self.input_K].astype(np.float64)))
            sign_N = random.choice((-1.0, 1.0), inputs)
            perfect.append(self.error(self.chance_K + sign_N[self.input_K] * differences_K))
        error = self.error()
        low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
        start = 0.0 if error <= np.percentile(perfect, 97.5) else min(low, 2 * error - high)
        return max(0.0, start), min(1.0, max(high, 2 * error - low))
