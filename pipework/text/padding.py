"""Pad inputs to rectangular batches.

Shapes: B rows, T tokens of the longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.manifest import Input
from pipework.text.encoding import Encoding


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """How rows are padded: the padding ids, whether there are type ids, and the side."""

    pad_id: int
    type_ids: bool
    pad_type_id: int = 0
    left: bool = False

    @classmethod
    def of(cls, model_input: Input) -> "Padding":
        """Return the padding recorded in a manifest."""
        return cls(
            pad_id=model_input.pad_id,
            type_ids=model_input.type_ids,
            pad_type_id=model_input.pad_type_id,
            left=model_input.pad_left,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Padded:
    """A padded batch: ids, mask (1 for a token, 0 for padding) and type ids, each int64 [B, T].

    `spans_B4` is int64 [B, 4]: start and end of the first and the second entity in the padded
    row, or None for a task without entities.
    """

    ids_BT: NDArray[np.int64]
    mask_BT: NDArray[np.int64]
    type_ids_BT: NDArray[np.int64] | None
    spans_B4: NDArray[np.int64] | None

    def inputs(self) -> dict[str, NDArray[np.int64]]:
        """Return the arrays by the input names of models and engines."""
        named = {
            "input_ids": self.ids_BT,
            "attention_mask": self.mask_BT,
            "token_type_ids": self.type_ids_BT,
            "entity_spans": self.spans_B4,
        }
        return {name: array for name, array in named.items() if array is not None}


def pad(encodings: Sequence[Encoding], padding: Padding) -> Padded:
    """Pad B >= 1 encodings to the longest."""
    shape = (len(encodings), max(map(len, encodings)))
    ids_BT = np.full(shape, padding.pad_id, np.int64)
    mask_BT = np.zeros(shape, np.int64)
    type_ids_BT = np.full(shape, padding.pad_type_id, np.int64) if padding.type_ids else None
    marked = encodings[0].entity_spans is not None
    spans_B4 = np.zeros((shape[0], 4), np.int64) if marked else None
    for row, encoding in enumerate(encodings):
        start = shape[1] - len(encoding) if padding.left else 0
        place = slice(start, start + len(encoding))
        ids_BT[row, place] = encoding.ids
        mask_BT[row, place] = 1
        if type_ids_BT is not None and encoding.type_ids is not None:
            type_ids_BT[row, place] = encoding.type_ids
        if spans_B4 is not None and encoding.entity_spans is not None:
            spans_B4[row] = start + np.array(encoding.entity_spans).reshape(4)
    return Padded(ids_BT=ids_BT, mask_BT=mask_BT, type_ids_BT=type_ids_BT, spans_B4=spans_B4)
