"""A classifier that reads packed rows: no code of the family's own is changed.

The encoder is called with a float bias in place of a mask, 0 between tokens of one text and far
below 0 elsewhere, and with positions of its own; then the states of each text are gathered and
its head reads them, as it would read a padded batch.

Shapes: R rows, T tokens of a row, N texts, L tokens of the longest, H width, C classes.
"""

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from train.model import Classifier
from train.model_settings import Head

SLIDING = "sliding_attention"  # the name of layers that see no further than a window
FAR_BELOW = -1e4  # its exponential is 0 in float32 and float16, and it is a number in both


class PackedClassifier(nn.Module):
    """Reads the arrays of `pipework.packing.Packed`."""

    def __init__(self, classifier: Classifier) -> None:
        """Take over a classifier whose family passes `check_packable`."""
        super().__init__()
        self.classifier = classifier
        self.offset = first_position(classifier.encoder)
        self.width = int(classifier.config.hidden_size)  # a number: no tensor's shape is read
        self.window = _window(classifier.config)
        pools_all = getattr(classifier.config, "classifier_pooling", "cls") == "mean"
        self.first_only = classifier.settings.head is Head.LINEAR and not pools_all

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        text_index: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits [N, C]."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states_RTH = self.classifier.encoder(
            input_ids=input_ids,
            attention_mask=self._bias(segment_ids, position_ids),
            position_ids=position_ids + self.offset,
            **types,
        ).last_hidden_state
        flat_SH = states_RTH.reshape(-1, self.width)
        states_NLH = flat_SH[text_index.clamp(min=0)]
        mask_NL = (text_index >= 0).to(torch.int64)
        return self.classifier.from_states(states_NLH, mask_NL, entity_spans)

    def _bias(
        self, segments_RT: torch.Tensor, positions_RT: torch.Tensor
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the bias [R, 1, T, T], one for each kind of layer where there are two."""
        apart_R1TT = segments_RT[:, None, :, None] != segments_RT[:, None, None, :]
        bias_R1TT = apart_R1TT.to(torch.float32) * FAR_BELOW
        if self.window is None:
            return bias_R1TT
        # The tokens of a text are neighbours in a row too, so their distances are the same.
        distance_R1TT = (positions_RT[:, None, :, None] - positions_RT[:, None, None, :]).abs()
        far_R1TT = apart_R1TT | (distance_R1TT > self.window)
        return {"full_attention": bias_R1TT, SLIDING: far_R1TT.to(torch.float32) * FAR_BELOW}


def first_position(encoder: PreTrainedModel) -> int:
    """Return the position of a text's first token.

    RoBERTa and its like count on from the row of the table that stands for padding; the others
    have no such row, or no table.
    """
    table = getattr(encoder.embeddings, "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def _window(config: PreTrainedConfig) -> int | None:
    """Return how far layers with a window see to each side, None for a family without them."""
    sliding = SLIDING in (getattr(config, "layer_types", None) or ())
    return int(config.sliding_window) if sliding else None
