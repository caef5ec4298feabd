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


def pad(encodings: Sequence[Encoding], padding: Padding) -> dict[str, NDArray[np.int64]]:
    """Pad B >= 1 encodings to the longest.

    Returns:
        The arrays by the input names of models and engines: ids, mask (1 for a token, 0 for
        padding) and, if the model has them, type ids, each int64 [B, T]; for a task with entities
        `entity_spans`, int64 [B, 4]: start and end of both in the padded row.
    """
    shape = (len(encodings), max(map(len, encodings)))
    ids_BT = np.full(shape, padding.pad_id, np.int64)
    mask_BT = np.zeros(shape, np.int64)
    type_ids_BT = np.full(shape, padding.pad_type_id, np.int64)
    marked = encodings[0].entity_spans is not None
    spans_B4 = np.zeros((shape[0], 4), np.int64)
    for row, encoding in enumerate(encodings):
        start = shape[1] - len(encoding) if padding.left else 0
        place = slice(start, start + len(encoding))
        ids_BT[row, place] = encoding.ids
        mask_BT[row, place] = 1
        if padding.type_ids and encoding.type_ids is not None:
            type_ids_BT[row, place] = encoding.type_ids
        if marked and encoding.entity_spans is not None:
            spans_B4[row] = start + np.array(encoding.entity_spans).reshape(4)
    arrays = {"input_ids": ids_BT, "attention_mask": mask_BT}
    arrays |= {"token_type_ids": type_ids_BT} if padding.type_ids else {}
    return arrays | ({"entity_spans": spans_B4} if marked else {})
