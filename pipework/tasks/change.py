"""The record of how far the predictions of an engine differ from the checkpoint's. No NumPy."""

import math

from pydantic import ConfigDict

from pipework.record import Record

RISK = 0.05
BISECTIONS = 40


class PredictionChange(Record):
    """How far the predictions of an engine differ from the checkpoint's.

    Attributes:
        argmax_agreement: share of inputs whose labels are the same in every batch.
        flips: number of inputs whose labels changed in at least one batch.
        max_change: largest change of a probability; for a regression, of the value as a share of
            the range of the dev targets (of the predictions without labelled rows).
        inputs: number of compared inputs; 0 if it is unknown.
        target_range: that range; None for labels.
    """

    # The differences of an engine that fails may be NaN; engines in a manifest have passed.
    model_config = ConfigDict(allow_inf_nan=True)

    argmax_agreement: float
    flips: int
    max_change: float
    inputs: int = 0
    target_range: float | None = None

    @property
    def labels_bound(self) -> float:
        """The largest share of changed labels that agrees with the inputs (95 %, Clopper-Pearson).

        Without a change of N inputs, this is about 3 / N.
        """
        if not self.inputs:
            return 1.0
        low, high = self.flips / self.inputs, 1.0
        for _ in range(BISECTIONS):
            share = (low + high) / 2
            if _at_most(self.flips, self.inputs, share) > RISK:
                low = share
            else:
                high = share
        return high


def _at_most(most: int, inputs: int, share: float) -> float:
    """Return the probability of at most this number of changes."""
    if share >= 1:
        return float(most >= inputs)
    logs = (
        math.lgamma(inputs + 1)
        - math.lgamma(count + 1)
        - math.lgamma(inputs - count + 1)
        + count * math.log(share)
        + (inputs - count) * math.log1p(-share)
        for count in range(most + 1)
    )
    return sum(map(math.exp, logs))
