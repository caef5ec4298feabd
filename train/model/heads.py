"""Heads: compute logits from the last hidden states of an encoder.

Every head takes `(states_BTH, mask_BT, spans_B4)` with each text at column 0 and padding on the
right. The logits of a row do not depend on the padding or on the other rows of a batch.

Shapes: B rows, T tokens of the longest row, H width of the encoder, C classes.
"""

import torch
from torch import nn
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.train.config.model import (
    CnnSettings,
    Head,
    HeadSettings,
    PoolingMode,
    PoolingSettings,
    RnnSettings,
)


class StatesHead(nn.Module):
    """Base class of heads: hidden states in, logits out."""

    def forward(
        self, states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [B, C]; `mask_BT` is 1 for a token, `spans_B4` int64 as in `pad`."""
        raise NotImplementedError


def make_head(settings: HeadSettings, *, width: int, classes: int, cls_last: bool) -> StatesHead:
    """Return a head with new weights for states of width H = `width`.

    Args:
        settings: type and sizes of the head.
        width: H of the encoder.
        classes: C.
        cls_last: whether the last token represents the text (XLNet), not the first.

    Raises:
        ConfigError: for the linear head, which is part of the model in transformers.
    """
    match settings.head:
        case Head.CNN:
            return CnnHead(settings.cnn, settings.dropout, width, classes)
        case Head.LSTM | Head.GRU:
            kind = nn.LSTM if settings.head is Head.LSTM else nn.GRU
            return RnnHead(kind, settings.rnn, settings.dropout, width, classes)
        case Head.POOLING:
            pooling = settings.pooling
            return PoolingHead(pooling, settings.dropout, width, classes, cls_last=cls_last)
        case Head.ENTITY:
            return EntityHead(settings.dropout, width, classes, cls_last=cls_last)
        case Head.LINEAR:
            message = "the linear head is part of the model in transformers"
            raise ConfigError(message)


class CnnHead(StatesHead):
    """Convolutions of several sizes over the tokens, with max-pooling over time.

    Kim 2014, https://arxiv.org/abs/1408.5882. A window starts at each token of the text and is
    padded with zeros at the end, so a text shorter than a filter has windows too.
    """

    def __init__(self, settings: CnnSettings, dropout: float, width: int, classes: int) -> None:
        super().__init__()
        self.sizes = settings.filter_sizes
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, settings.filters, size) for size in settings.filter_sizes
        )
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(settings.filters * len(settings.filter_sizes), classes)

    def forward(
        self, states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [B, C]."""
        del spans_B4
        mask_B1T = mask_BT.to(states_BTH.dtype).unsqueeze(1)
        states_BHT = states_BTH.transpose(1, 2) * mask_B1T
        pooled = []
        for convolution, size in zip(self.convolutions, self.sizes, strict=True):
            windows_BFT = convolution(functional.pad(states_BHT, (0, size - 1)))
            # ReLU >= 0, so masked windows never win.
            pooled.append((functional.relu(windows_BFT) * mask_B1T).amax(2))
        logits: torch.Tensor = self.out(self.dropout(torch.cat(pooled, 1)))
        return logits


class RnnHead(StatesHead):
    """An LSTM or GRU over the tokens; the logits use the last state of each direction."""

    # In autocast too the layers compute in float32: cuDNN has them in bf16 only since 9.13
    # (https://github.com/pytorch/pytorch/pull/164411).
    # The backward direction is a forward pass over each text, reversed within its length. So the
    # result does not depend on the padding, without packed sequences, which some runtimes compute
    # incorrectly.

    def __init__(
        self,
        kind: type[nn.LSTM | nn.GRU],
        settings: RnnSettings,
        dropout: float,
        width: int,
        classes: int,
    ) -> None:
        super().__init__()
        directions = 2 if settings.bidirectional else 1
        sizes = (width, *[settings.hidden * directions] * (settings.layers - 1))
        self.forwards, self.backwards = (
            nn.ModuleList(kind(size, settings.hidden, batch_first=True) for size in used)
            for used in (sizes, sizes if settings.bidirectional else ())
        )
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(settings.hidden * directions, classes)

    def forward(
        self, states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [B, C]."""
        del spans_B4
        device = states_BTH.device.type
        if not torch.is_autocast_enabled(device):
            return self._logits(states_BTH, mask_BT)
        with torch.autocast(device, enabled=False):
            return self._logits(states_BTH.float(), mask_BT)

    def _logits(self, states_BTH: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        last_B1 = mask_BT.sum(1, keepdim=True) - 1
        position_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device).unsqueeze(0)
        reversed_BT = torch.where(position_1T <= last_B1, last_B1 - position_1T, position_1T)
        states, ends = states_BTH, states_BTH[:, 0]
        for depth, forward in enumerate(self.forwards):
            outputs = [forward(states)[0]]
            final = [_take(outputs[0], last_B1)]
            for backward in self.backwards[depth : depth + 1]:
                output = backward(_take(states, reversed_BT))[0]
                final.append(_take(output, last_B1))
                outputs.append(_take(output, reversed_BT))
            states = self.dropout(torch.cat(outputs, 2))
            ends = torch.cat(final, 2).squeeze(1)
        logits: torch.Tensor = self.out(self.dropout(ends))
        return logits


class EntityHead(StatesHead):
    """Combines the state of the text token with the mean states of both entities.

    R-BERT, Wu and He 2019, https://arxiv.org/abs/1905.08284: tanh and a linear layer for each of
    the three, then a joint linear layer. In the paper both entities share a layer.
    """

    def __init__(self, dropout: float, width: int, classes: int, *, cls_last: bool) -> None:
        super().__init__()
        self.cls_last = cls_last
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Dropout(dropout), nn.Tanh(), nn.Linear(width, width)) for _ in range(3)
        )
        self.out = nn.Sequential(nn.Dropout(dropout), nn.Linear(3 * width, classes))

    def forward(
        self, states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [B, C].

        Raises:
            ConfigError: `spans_B4` is missing.
        """
        if spans_B4 is None:
            message = "the entity head needs texts with marked entities, found none"
            raise ConfigError(
                message, "set data.marked or data.columns.entities, or use another model.head"
            )
        last_B1 = mask_BT.sum(1, keepdim=True) - 1
        whole_BH = _take(states_BTH, last_B1 if self.cls_last else last_B1 * 0).squeeze(1)
        inputs = (
            whole_BH,
            _mean(states_BTH, spans_B4[:, 0:1], spans_B4[:, 1:2]),
            _mean(states_BTH, spans_B4[:, 2:3], spans_B4[:, 3:4]),
        )
        outputs = [part(input_BH) for part, input_BH in zip(self.parts, inputs, strict=True)]
        logits: torch.Tensor = self.out(torch.cat(outputs, 1))
        return logits


class PoolingHead(StatesHead):
    """A linear layer over the mean state or the state of the text token.

    Sentence encoders are trained this way (Reimers and Gurevych 2019,
    https://arxiv.org/abs/1908.10084), and SetFit trains a head on them.
    """

    def __init__(
        self,
        settings: PoolingSettings,
        dropout: float,
        width: int,
        classes: int,
        *,
        cls_last: bool,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.cls_last = cls_last
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(
        self, states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [B, C]."""
        del spans_B4
        if self.settings.mode is PoolingMode.MEAN:
            total_BH = (states_BTH * mask_BT.to(states_BTH.dtype).unsqueeze(2)).sum(1)
            pooled_BH = total_BH / mask_BT.sum(1, keepdim=True)
        else:
            last_B1 = mask_BT.sum(1, keepdim=True) - 1
            pooled_BH = _take(states_BTH, last_B1 if self.cls_last else last_B1 * 0).squeeze(1)
        if self.settings.normalize:
            pooled_BH = functional.normalize(pooled_BH, dim=1)
        logits: torch.Tensor = self.out(self.dropout(pooled_BH))
        return logits


def to_column_0(
    states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Shift texts that are padded on the left to column 0, with their spans."""
    count_B1 = mask_BT.sum(1, keepdim=True)
    position_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device).unsqueeze(0)
    start_B1 = mask_BT.shape[1] - count_B1
    from_BT = torch.clamp(position_1T + start_B1, max=mask_BT.shape[1] - 1)
    shifted = None if spans_B4 is None else spans_B4 - start_B1
    return _take(states_BTH, from_BT), (position_1T < count_B1).to(mask_BT.dtype), shifted


def _take(states_BTH: torch.Tensor, positions_BK: torch.Tensor) -> torch.Tensor:
    """Return the states [B, K, H] at K positions of each row."""
    return states_BTH.gather(1, positions_BK.unsqueeze(2).expand(-1, -1, states_BTH.shape[2]))


def _mean(states_BTH: torch.Tensor, start_B1: torch.Tensor, end_B1: torch.Tensor) -> torch.Tensor:
    position_1T = torch.arange(states_BTH.shape[1], device=states_BTH.device).unsqueeze(0)
    inside_BT = ((position_1T >= start_B1) & (position_1T < end_B1)).to(states_BTH.dtype)
    total_BH = (states_BTH * inside_BT.unsqueeze(2)).sum(1)
    return total_BH / inside_BT.sum(1, keepdim=True).clamp(min=1)
