"""Runs an unmodified encoder on packed rows.

The encoder gets a float attention bias instead of a mask, 0 between tokens of the same text and a
large negative number elsewhere, and position ids that start again in each text.

Shapes: R rows, T tokens of a row, H width.
"""

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from pipework.errors import ConfigError

SLIDING = "sliding_attention"  # layer type with a limited attention window
MASKED_BIAS = -1e4  # finite in float32 and float16, and its exponential is 0 in both
# The encoders of these families accept an attention bias [R, 1, T, T] and position ids, and need
# no other state.
PACKABLE = frozenset(
    {
        *("albert", "bert", "camembert", "distilbert", "electra"),
        *("modernbert", "mpnet", "rembert", "roberta", "xlm-roberta"),
    }
)
# Their attention is a function of `transformers.AttentionInterface`, and they add no bias to it.
VARLEN = PACKABLE - {"mpnet", "rembert"}
REASONS = {
    "deberta": "it multiplies its embeddings by the mask",
    "deberta-v2": "it multiplies its embeddings by the mask",
    "funnel": "it pools neighbouring tokens",
    "mpnet": "its attention adds a bias for relative positions",
    "nystromformer": "its attention uses means over the whole row",
    "rembert": "its attention cannot be replaced in transformers",
    "xlnet": "its positions are relative to the whole row",
}


class PackedEncoder:
    """Reads the arrays of `pipework.text.packing.pack`; not a module, as it has no weights."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        """Wrap an encoder whose family passes `check_packable`."""
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
        bias = self._bias(segment_ids, position_ids)
        return self.states(input_ids, position_ids, bias, token_type_ids)

    def states(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        bias: torch.Tensor | dict[str, torch.Tensor],
        token_type_ids: torch.Tensor | None = None,
        **attention: torch.Tensor,
    ) -> torch.Tensor:
        """Return the last hidden states with a given bias, and arguments of the attention."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states_RTH: torch.Tensor = self._encoder(
            input_ids=input_ids,
            attention_mask=bias,
            position_ids=position_ids + self._offset,
            **types,
            **attention,
        ).last_hidden_state
        return states_RTH

    def _bias(
        self, segments_RT: torch.Tensor, positions_RT: torch.Tensor
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the bias [R, 1, T, T], or one for each layer type."""
        different_R1TT = segments_RT[:, None, :, None] != segments_RT[:, None, None, :]
        bias_R1TT = different_R1TT.to(torch.float32) * MASKED_BIAS
        if self.window is None:
            return bias_R1TT
        # The tokens of a text are adjacent in a row, so their distances are unchanged.
        distance_R1TT = (positions_RT[:, None, :, None] - positions_RT[:, None, None, :]).abs()
        far_R1TT = different_R1TT | (distance_R1TT > self.window)
        return {"full_attention": bias_R1TT, SLIDING: far_R1TT.to(torch.float32) * MASKED_BIAS}


def first_position(encoder: PreTrainedModel) -> int:
    """Return the position id of the first token of a text."""
    # RoBERTa and similar families start after the position id that is reserved for padding.
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def _window(config: PreTrainedConfig) -> int | None:
    """Return the attention window to each side, or None if the family has no such layers."""
    sliding = SLIDING in (getattr(config, "layer_types", None) or ())
    return int(config.sliding_window) if sliding else None


def check_packable(family: str, instead: str = "use --layout padded") -> None:
    """Check that a family supports packed rows; `instead` is the alternative in the hint.

    Raises:
        ConfigError: it does not.
    """
    _check_family(family, PACKABLE, "packed rows", instead)


def check_varlen(family: str) -> None:
    """Check that a family supports the varlen layout.

    Raises:
        ConfigError: it does not.
    """
    _check_family(family, VARLEN, "the varlen layout", "use --layout padded or packed")


def _check_family(family: str, supported: frozenset[str], layout: str, instead: str) -> None:
    if family not in supported:
        reason = REASONS.get(family, "not tested")
        message = f"{family} does not support {layout}: {reason}"
        raise ConfigError(message, f"{instead}; supported: {', '.join(sorted(supported))}")
