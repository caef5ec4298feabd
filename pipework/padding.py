"""Inputs side by side in rectangular arrays, for whatever computes on padded batches.

Shapes: B rows, T tokens of the longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.encoding import Encoding


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Padded:
    """A micro-batch: ids, mask (1 for a token, 0 for padding) and type ids, each int64 [B, T]."""

    ids_BT: NDArray[np.int64]
    mask_BT: NDArray[np.int64]
    type_ids_BT: NDArray[np.int64] | None


def pad(encodings: Sequence[Encoding], *, pad_id: int, type_ids: bool) -> Padded:
    """Lay B >= 1 encodings side by side, padded on the right to the longest."""
    shape = (len(encodings), max(map(len, encodings)))
    ids_BT = np.full(shape, pad_id, np.int64)
    mask_BT = np.zeros(shape, np.int64)
    type_ids_BT = np.zeros(shape, np.int64) if type_ids else None
    for row, encoding in enumerate(encodings):
        ids_BT[row, : len(encoding)] = encoding.ids
        mask_BT[row, : len(encoding)] = 1
        if type_ids_BT is not None and encoding.type_ids is not None:
            type_ids_BT[row, : len(encoding)] = encoding.type_ids
    return Padded(ids_BT=ids_BT, mask_BT=mask_BT, type_ids_BT=type_ids_BT)
