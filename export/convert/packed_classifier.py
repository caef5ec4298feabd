"""A classifier that reads packed rows: no code of the family's own is changed.

The encoder is called with a float bias in place of a mask, 0 between tokens of one text and far
below 0 elsewhere, and with positions of its own; then the states of each text are gathered and
its head reads them, as it would read a padded batch.

Shapes: R rows, T tokens of a row, N texts, L tokens of the longest, H width, C classes.
"""

import torch
from torch import nn

from pipework.train.config.model import Head
from pipework.train.model.classifier import Classifier
from pipework.train.model.packed_encoder import PackedEncoder


class PackedClassifier(nn.Module):
    """Reads the arrays of `pipework.text.packing.Packed`."""

    def __init__(self, classifier: Classifier) -> None:
        """Take over a classifier whose family passes `check_packable`."""
        super().__init__()
        self.classifier = classifier
        self.read = PackedEncoder(classifier.encoder)
        self.width = int(classifier.config.hidden_size)  # a number: no tensor's shape is read
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
        states_RTH = self.read(input_ids, position_ids, segment_ids, token_type_ids)
        flat_SH = states_RTH.reshape(-1, self.width)
        states_NLH = flat_SH[text_index.clamp(min=0)]
        mask_NL = (text_index >= 0).to(torch.int64)
        return self.classifier.from_states(states_NLH, mask_NL, entity_spans)
