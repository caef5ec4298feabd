"""A classifier that reads packed rows: no code of the family's own is changed.

The encoder is called with a float bias in place of a mask, 0 between tokens of one text and far
below 0 elsewhere, and with positions of its own; then the states of each text are gathered and
its head reads them, as it would read a padded batch.

Shapes: R rows, T tokens of a row, N texts, L tokens of the longest, H width, C classes.
"""

import torch
from torch import nn

from train.model import Classifier
from train.model_settings import Head

# Whose encoders take a [R, 1, T, T] bias and positions, and use nothing else of a row.
PACKABLE = {
    "albert": 0,
    "bert": 0,
    "camembert": 1,
    "distilbert": 0,
    "electra": 0,
    "mpnet": 1,
    "rembert": 0,
    "roberta": 1,
    "xlm-roberta": 1,
}
FAR_BELOW = -1e4  # its exponential is 0 in float32 and float16, and it is a number in both


class PackedClassifier(nn.Module):
    """Reads the arrays of `pipework.packing.Packed`."""

    def __init__(self, classifier: Classifier) -> None:
        """Take over a classifier whose family is in PACKABLE."""
        super().__init__()
        self.classifier = classifier
        config = classifier.config
        # RoBERTa and its like count positions from the padding id on.
        offset = (int(config.pad_token_id) + 1) * PACKABLE[config.model_type]
        self.offset = offset
        pools_all = getattr(config, "classifier_pooling", "cls") == "mean"
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
        apart_R1TT = segment_ids[:, None, :, None] != segment_ids[:, None, None, :]
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states_RTH = self.classifier.encoder(
            input_ids=input_ids,
            attention_mask=apart_R1TT.to(torch.float32) * FAR_BELOW,
            position_ids=position_ids + self.offset,
            **types,
        ).last_hidden_state
        flat_SH = states_RTH.reshape(-1, states_RTH.shape[-1])
        states_NLH = flat_SH[text_index.clamp(min=0)]
        mask_NL = (text_index >= 0).to(torch.int64)
        return self.classifier.from_states(states_NLH, mask_NL, entity_spans)
