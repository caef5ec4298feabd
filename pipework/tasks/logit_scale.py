"""The scale of logits that gives calibrated probabilities, and its fit to labelled rows.

A temperature divides all logits of a classifier with one label (Guo et al. 2017,
https://arxiv.org/abs/1706.04599). For several labels, each label has a scale and an offset (Platt
1999, "Probabilistic Outputs for Support Vector Machines"). As in Platt's method, the targets are
not 0 and 1: they hold one more row with every value, so that rows without an error do not give
probabilities of 1.

Shapes: N inputs, C classes.
"""

from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipework.progress import counted
from pipework.record import Record
from pipework.tasks.outputs import Outputs

FEWEST = 50  # rows; for a label of several, half of them with the label and half without
MAX_LOGITS = 10_000_000  # of more, every n-th row is used
TEMPERATURES = (0.05, 20.0)
Floats = NDArray[np.float64]
Scale = Annotated[float, Field(gt=0)]


class LogitScale(Record):
    """The calibration of a model: calibrated logits are logits x scale + offset.

    The last layer of the checkpoint contains it. A temperature has one scale and the offset 0,
    other calibrations a scale and an offset for each label.
    """

    scale: tuple[Scale, ...]
    offset: tuple[float, ...]

    @classmethod
    def of_temperature(
        cls, logits_NC: NDArray[np.float32], true_NC: NDArray[np.bool_]
    ) -> Self | None:
        """Return the best temperature, see `fit_temperature`; None without one."""
        temperature = fit_temperature(logits_NC, true_NC)
        return None if temperature == 1 else cls(scale=(1 / temperature,), offset=(0.0,))

    @classmethod
    def of_labels(
        cls, logits_NC: NDArray[np.float32], true_NC: NDArray[np.bool_], *, offsets: bool
    ) -> Self | None:
        """Return the best scale and offset of each label, see `fit_platt`; None without any."""
        pairs = zip(logits_NC.T, true_NC.T, strict=True)
        fits = [fit_platt(*pair, offset=offsets) for pair in pairs]
        if all(fit == (1.0, 0.0) for fit in fits):
            return None
        scale, offset = zip(*fits, strict=True)
        return cls(scale=scale, offset=offset)

    def apply(self, outputs: Outputs) -> Outputs:
        """Return the calibrated logits."""
        scale_C, offset_C = np.array((self.scale, self.offset), np.float32)
        return Outputs(outputs.values * scale_C + offset_C, outputs.offsets)

    def undo(self, outputs: Outputs) -> Outputs:
        """Return the logits before the calibration."""
        scale_C, offset_C = np.array((self.scale, self.offset), np.float32)
        return Outputs((outputs.values - offset_C) / scale_C, outputs.offsets)

    def __str__(self) -> str:
        """Return the temperature, or the number of scales."""
        if not any(self.offset) and len(self.scale) == 1:
            return f"all logits are divided by {1 / self.scale[0]:.3g}"
        return f"a scale and an offset for each of {counted(len(self.scale), 'label')}"


def fit_temperature(logits_NC: NDArray[np.float32], true_NC: NDArray[np.bool_]) -> float:
    """Return the temperature with the lowest log loss; 1 with fewer than `FEWEST` rows.

    Args:
        logits_NC: the logits; rows with one that is not finite are left out.
        true_NC: the label of each row.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  (needs an extra)
    from scipy.special import log_softmax  # noqa: PLC0415  (needs an extra)

    step = 1 + logits_NC.size // MAX_LOGITS
    finite_N = np.isfinite(logits_NC).all(axis=1)
    logits_NC, true_NC = logits_NC[finite_N][::step], true_NC[finite_N][::step]
    rows, classes = logits_NC.shape
    if rows < FEWEST:
        return 1.0
    target_NC = (true_NC + 1 / (rows * classes)) / (1 + 1 / rows)

    def loss(log_temperature: float) -> float:
        scaled_NC = logits_NC.astype(np.float64) / np.exp(log_temperature)
        return -float((target_NC * log_softmax(scaled_NC, axis=1)).sum(axis=1).mean())

    found = minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded")
    return float(np.exp(found.x))


def fit_platt(
    logits_N: NDArray[np.float32], true_N: NDArray[np.bool_], *, offset: bool = True
) -> tuple[float, float]:
    """Return the scale and the offset of the logits of a label with the lowest log loss.

    They are 1 and 0 if fewer than `FEWEST` / 2 rows have the label, or do not have it, and if
    larger logits would give smaller probabilities.

    Args:
        logits_N: the logits of the label; those that are not finite are left out.
        true_N: the rows that have the label.
        offset: whether an offset other than 0 is possible.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  (needs an extra)

    finite_N = np.isfinite(logits_N)
    logits_N, true_N = logits_N[finite_N], true_N[finite_N]
    with_label = int(true_N.sum())
    without = len(true_N) - with_label
    if min(with_label, without) < FEWEST / 2:
        return 1.0, 0.0
    target_N = np.where(true_N, (with_label + 1) / (with_label + 2), 1 / (without + 2))
    input_N2 = np.stack([logits_N, np.full(len(logits_N), float(offset))], axis=1)

    def loss(parameters: Floats) -> tuple[float, Floats]:
        shifted_N = input_N2 @ parameters
        losses_N = np.logaddexp(0, shifted_N) - target_N * shifted_N
        error_N = np.exp(-np.logaddexp(0, -shifted_N)) - target_N
        return float(losses_N.mean()), error_N @ input_N2 / len(error_N)

    scale, shift = minimize(loss, (1.0, 0.0), jac=True, method="BFGS").x.tolist()
    return (scale, shift) if scale > 0 else (1.0, 0.0)
