"""The record of how far the predictions of an engine differ from the checkpoint's. No NumPy."""

from pydantic import ConfigDict

from pipework.record import Record


class PredictionChange(Record):
    """How far the predictions of an engine differ from the checkpoint's.

    Attributes:
        argmax_agreement: share of inputs whose labels are the same in every batch.
        flips: number of inputs whose labels changed in at least one batch.
        max_change: largest change of a probability; for a regression, of the value as a share of
            the range of the dev targets (of the predictions without labelled rows).
        target_range: that range; None for labels.
    """

    # The differences of an engine that fails may be NaN; engines in a manifest have passed.
    model_config = ConfigDict(allow_inf_nan=True)

    argmax_agreement: float
    flips: int
    max_change: float
    target_range: float | None = None
