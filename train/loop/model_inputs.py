"""Batches of rows as model inputs on the device.

Shapes: B rows of a batch, T tokens of its longest row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipework.text.padding import Padding, pad
from pipework.train.data.batches import Rows
from pipework.train.data.token_cache import TokenRows, TokenSet
from pipework.train.loop.encoder_states import EncoderStates
from pipework.train.loop.to_device import to_device
from pipework.train.model.classifier import Classifier

Inputs = dict[str, torch.Tensor]


class BatchLoader(Protocol):
    """Loads batches of a split."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row."""

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return the model inputs of a batch, on the device."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids that training needs: padding, the mask token, and all special tokens."""

    padding: Padding
    mask_id: int
    special_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenLoader:
    """Loads token ids, padded to the longest row of a batch; masks a share `token_dropout`."""

    rows: TokenRows
    vocabulary: Vocabulary
    device: torch.device
    token_dropout: float = 0.0

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row."""
        return self.rows.lengths

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return ids, mask and, if present, type ids and entity spans, int64."""
        arrays = pad(self.rows.encodings(rows_B), self.vocabulary.padding)
        inputs = arrays_to_device(arrays, self.device)
        if self.token_dropout:
            inputs["input_ids"] = self._drop_tokens(inputs["input_ids"])
        return inputs

    def _drop_tokens(self, ids_BT: torch.Tensor) -> torch.Tensor:
        special = to_device(np.array(self.vocabulary.special_ids), self.device)
        drop_BT = torch.rand(ids_BT.shape, device=self.device) < self.token_dropout
        return ids_BT.masked_fill(drop_BT & ~torch.isin(ids_BT, special), self.vocabulary.mask_id)


@dataclass(frozen=True, kw_only=True, eq=False)
class StateLoader:
    """Loads states of a frozen encoder that were computed from `rows`, for `HeadOnly`."""

    features: EncoderStates
    rows: TokenSet
    device: torch.device

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row."""
        return self.rows.lengths

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return states float32 [B, T, H], mask and, if present, entity spans."""
        states_BTH, mask_BT = self.features.batch(rows_B, self.device)
        inputs = {"states": states_BTH, "attention_mask": mask_BT}
        if len(self.rows.spans):
            lengths_B = self.lengths[rows_B]
            start_B = (
                lengths_B.max() - lengths_B if self.features.left else np.zeros_like(lengths_B)
            )
            spans_B4 = self.rows.spans[rows_B].astype(np.int64) + start_B[:, None]
            inputs["entity_spans"] = to_device(spans_B4, self.device)
        return inputs


class HeadOnly(nn.Module):
    """Computes only the head of a classifier, from encoder states."""

    def __init__(self, classifier: Classifier) -> None:
        """Share the weights of the classifier."""
        super().__init__()
        self.classifier = classifier

    def forward(
        self,
        states: torch.Tensor,
        attention_mask: torch.Tensor,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits [B, C]."""
        return self.classifier.from_states(states, attention_mask, entity_spans)


def arrays_to_device(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> Inputs:
    """Copy arrays to the device."""
    return {name: to_device(array, device) for name, array in arrays.items()}
