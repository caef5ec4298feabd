"""Stored descriptions of what was sent."""

from pipework.run_folder.files import Record


class WorkloadSummary(Record):
    """What was sent; lengths are of a text, or of both texts of a pair, in characters.

    `texts_per_request` is None where it changes from request to request, as in a trace.
    `mean_tokens` are of a text or a pair, None where no tokenizer was given.
    """

    source: str
    texts: int
    texts_per_request: int | None
    pair: bool
    mean_length: float
    p95_length: float
    seed: int
    mean_tokens: float | None = None
