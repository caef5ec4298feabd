"""Encodings become padded arrays, and a batch becomes micro-batches of like lengths.

Shapes: N inputs of a batch, B rows of a micro-batch, T tokens of its longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.encoding import Encoding

# What a call of the runtime costs beyond its tokens, in tokens. Measured on two cores of an EPYC:
# 6 to 16 for encoders of 2 to 6 layers. Padding is worth it only while it costs less than a call.
CALL_COST_TOKENS = 16


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


def plan(lengths_N: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut a batch into micro-batches of like lengths.

    Args:
        lengths_N: tokens of each input.
        max_tokens: the most tokens of a micro-batch, padding included. An input that is longer
            gets a micro-batch of its own.

    Returns:
        Indices of the inputs of each micro-batch, shortest first; every input occurs once.
    """
    batches: list[list[int]] = []
    tokens = 0  # without padding, of the last micro-batch
    for index in sorted(range(len(lengths_N)), key=lengths_N.__getitem__):
        length = lengths_N[index]
        padded = length * (len(batches[-1]) + 1) if batches else 0
        fits = padded <= max_tokens and padded - tokens - length <= CALL_COST_TOKENS
        if batches and fits:
            batches[-1].append(index)
            tokens += length
        else:
            batches.append([index])
            tokens = length
    return batches
