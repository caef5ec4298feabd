"""Batches that an engine is asked for, and single inputs of them.

Shapes: B inputs of a batch, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.export.rows.edge_cases import Row

Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One input in one batch, and what both answered.

    Attributes:
        rows: the inputs of the batch.
        place: which of them it is, from 0.
        rule: what put the batch together, in words.
        whole: whether the batch was one call, whatever it cost.
        expected_C: the checkpoint's logits.
        found_C: the engine's; None where it gave an error.
    """

    rows: Sequence[Row]
    place: int
    rule: str
    whole: bool
    expected_C: Logits
    found_C: Logits | None

    @property
    def row(self) -> Row:
        """The input."""
        return self.rows[self.place]

    @property
    def apart(self) -> float:
        """The largest difference of a logit; infinite where there is no number."""
        if self.found_C is None or not np.isfinite(self.found_C).all():
            return float("inf")
        return float(np.abs(self.found_C - self.expected_C).max())


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A batch with what the checkpoint answers, [B, C]; `inputs` are numbers of its inputs."""

    rows: Sequence[Row]
    inputs: Sequence[int]
    rule: str
    whole: bool
    expected_BC: Logits

    def case(self, place: int, found_C: Logits | None) -> Case:
        """Return one of its inputs with the engine's answer."""
        return Case(
            rows=self.rows,
            place=place,
            rule=self.rule,
            whole=self.whole,
            expected_C=self.expected_BC[place],
            found_C=found_C,
        )


class EngineFailedError(CheckFailedError):
    """An engine gave an error in place of answers; `case` is what it was asked."""

    def __init__(self, message: str, case: Case) -> None:
        """Keep the case."""
        super().__init__(message)
        self.case = case
