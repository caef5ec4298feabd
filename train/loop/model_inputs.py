"""Rows become what a forward pass takes, on its device.

Shapes: B rows of a batch, T tokens of its longest row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipework.text.padding import Padding, pad
from pipework.train.data.batches import Rows
from pipework.train.data.token_cache import Tokens, TokenSet
from pipework.train.loop.encoder_states import FeatureSet
from pipework.train.model.classifier import Classifier

Inputs = dict[str, torch.Tensor]


class Feed(Protocol):
    """A split, ready to be learned from or answered."""

    lengths: NDArray[np.int64]

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return what the model takes, on the device."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the loop must know of ids: padding, and what replaces a dropped token."""

    padding: Padding
    mask_id: int
    special_ids: tuple[int, ...]


class TokenFeed:
    """Token ids, padded to the longest row of a batch."""

    def __init__(
        self,
        rows: Tokens,
        vocabulary: Vocabulary,
        device: torch.device,
        *,
        token_dropout: float = 0.0,
    ) -> None:
        """Read rows from a token cache; a share of their tokens is replaced by the mask token."""
        self._rows = rows
        self._token_dropout = token_dropout
        self._vocabulary = vocabulary
        self._device = device
        self.lengths = rows.lengths

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return ids, mask and, where there are any, type ids and entity spans, int64."""
        arrays = pad(self._rows.encodings(rows_B), self._vocabulary.padding).inputs()
        inputs = on_device(arrays, self._device)
        if self._token_dropout:
            self._drop_tokens(inputs["input_ids"])
        return inputs

    def _drop_tokens(self, ids_BT: torch.Tensor) -> None:
        special = torch.tensor(self._vocabulary.special_ids, device=self._device)
        drop_BT = torch.rand(ids_BT.shape, device=self._device) < self._token_dropout
        ids_BT[drop_BT & ~torch.isin(ids_BT, special)] = self._vocabulary.mask_id


class StateFeed:
    """The states of a frozen encoder, kept on disk; for `FromStates`."""

    def __init__(self, features: FeatureSet, rows: TokenSet, device: torch.device) -> None:
        """Read states that were computed from the rows of a token cache."""
        self._features = features
        self._rows = rows
        self._device = device
        self.lengths = rows.lengths

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return states float32 [B, T, H], mask and, where there are any, entity spans."""
        states_BTH, mask_BT = self._features.batch(rows_B, self._device)
        inputs = {"states": states_BTH, "attention_mask": mask_BT}
        if len(self._rows.spans):
            lengths_B = self.lengths[rows_B]
            start_B = (
                lengths_B.max() - lengths_B if self._features.left else np.zeros_like(lengths_B)
            )
            spans_B4 = self._rows.spans[rows_B].astype(np.int64) + start_B[:, None]
            inputs["entity_spans"] = torch.from_numpy(spans_B4).to(self._device)
        return inputs


class FromStates(nn.Module):
    """A classifier of which only the head computes."""

    def __init__(self, classifier: Classifier) -> None:
        """Share the classifier's head."""
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


def on_device(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> Inputs:
    """Copy arrays to the device."""
    return {name: moved(torch.from_numpy(array), device) for name, array in arrays.items()}


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to the device; a GPU copies while the processor goes on."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
