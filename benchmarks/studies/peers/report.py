"""What the peer is asked and what it answers, for both sides of the pipe between them."""

from enum import StrEnum

from pipework.run_folder.files import Record


class Setting(StrEnum):
    """How the Trainer is told to work.

    DEFAULTS pads every row to the longest allowed and computes in float32, as the library's own
    example does. BEST groups rows by length, pads to the longest of a batch and computes in bf16
    where the processor multiplies in it. Both use fused AdamW, the library's default.
    """

    DEFAULTS = "defaults"
    BEST = "best"


class PeerReport(Record):
    """What the peer tells: training only is in the rate; `scores` has dev after each epoch."""

    examples_per_s: float
    scores: tuple[float, ...]
    versions: dict[str, str]
