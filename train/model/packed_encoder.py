"""An encoder that reads packed rows: no code of the family's own is changed.

The encoder is called with a float bias in place of a mask, 0 between tokens of one text and far
below 0 elsewhere, and with positions of its own.

Shapes: R rows, T tokens of a row, H width.
"""

import torch
from transformers import PreTrainedConfig, PreTrainedModel

SLIDING = "sliding_attention"  # the name of layers that see no further than a window
FAR_BELOW = -1e4  # its exponential is 0 in float32 and float16, and it is a number in both


class PackedEncoder:
    """Reads the arrays of `pipework.text.packing.Packed`. No module: the encoder is another's part."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        """Use an encoder whose family passes `check_packable`."""
        self._encoder = encoder
        self._offset = first_position(encoder)
        self.window = _window(encoder.config)

    def __call__(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states [R, T, H]; all inputs are int64 [R, T]."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states_RTH: torch.Tensor = self._encoder(
            input_ids=input_ids,
            attention_mask=self._bias(segment_ids, position_ids),
            position_ids=position_ids + self._offset,
            **types,
        ).last_hidden_state
        return states_RTH

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
