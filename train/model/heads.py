"""Heads: the last hidden states of an encoder become logits.

Every head takes `(states_BTH, mask_BT, spans_B4)` with each text at column 0 and padding behind
it, and no answer depends on the padding or on the other rows of a batch.

Shapes: B rows, T tokens of the longest row, H width of the encoder, C classes, W width of what a
head makes of a text.
"""

import torch
from torch import nn
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.train.config.model import CnnSettings, Head, HeadSettings, RnnSettings


class States(nn.Module):
    """A head: hidden states in, logits out."""

    def forward(
        self, states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [B, C]; `mask_BT` is 1 for a token, `spans_B4` int64 as in `Padded`."""
        raise NotImplementedError


def make_head(settings: HeadSettings, *, width: int, classes: int, cls_last: bool) -> States:
    """Return a head with new weights for states of H = `width`.

    Args:
        settings: which head, with its sizes.
        width: H of the encoder.
        classes: C.
        cls_last: the token that stands for the whole text is the last one (XLNet), not the first.

    Raises:
        ConfigError: for the linear head, which the encoder's own library makes.
    """
    match settings.head:
        case Head.CNN:
            return Cnn(settings.cnn, settings.dropout, width, classes)
        case Head.LSTM | Head.GRU:
            kind = nn.LSTM if settings.head is Head.LSTM else nn.GRU
            return Rnn(kind, settings.rnn, settings.dropout, width, classes)
        case Head.ENTITY:
            return Entity(settings.dropout, width, classes, cls_last=cls_last)
        case Head.LINEAR:
            message = "a linear head has no states of its own: it is part of the standard model"
            raise ConfigError(message)


class Cnn(States):
    """Filters of several sizes over the tokens, the maximum over time of each.

    Kim 2014, https://arxiv.org/abs/1408.5882. A window starts at each token of the text and sees
    zeros behind its end, so that a text shorter than a filter has windows too.
    """

    def __init__(self, settings: CnnSettings, dropout: float, width: int, classes: int) -> None:
        """Make filters of H rows for each size."""
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
        found = []
        for convolution, size in zip(self.convolutions, self.sizes, strict=True):
            windows_BFT = convolution(functional.pad(states_BHT, (0, size - 1)))
            found.append((functional.relu(windows_BFT) * mask_B1T).amax(2))  # ReLU >= 0: 0 is none
        logits: torch.Tensor = self.out(self.dropout(torch.cat(found, 1)))
        return logits


class Rnn(States):
    """An LSTM or GRU over the tokens; the last state of each direction makes the logits.

    The backward direction is a forward pass over each text reversed inside its own length. That
    takes neither packed sequences, which not every runtime reads rightly, nor an answer that
    depends on the padding.
    """

    def __init__(
        self,
        kind: type[nn.LSTM | nn.GRU],
        settings: RnnSettings,
        dropout: float,
        width: int,
        classes: int,
    ) -> None:
        """Make a one-directional layer for each layer and direction."""
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
        last_B1 = mask_BT.sum(1, keepdim=True) - 1
        place_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device).unsqueeze(0)
        reversed_BT = torch.where(place_1T <= last_B1, last_B1 - place_1T, place_1T)
        states, ends = states_BTH, states_BTH[:, 0]
        for depth, forward in enumerate(self.forwards):
            ways = [forward(states)[0]]
            final = [_take(ways[0], last_B1)]
            for backward in self.backwards[depth : depth + 1]:
                made = backward(_take(states, reversed_BT))[0]
                final.append(_take(made, last_B1))
                ways.append(_take(made, reversed_BT))
            states = self.dropout(torch.cat(ways, 2))
            ends = torch.cat(final, 2).squeeze(1)
        logits: torch.Tensor = self.out(self.dropout(ends))
        return logits


class Entity(States):
    """The text's own token and the mean of each entity, each through its own layer.

    R-BERT, Wu and He 2019, https://arxiv.org/abs/1905.08284: tanh, then a linear layer for each of
    the three, then one for all. The paper lets both entities share a layer.
    """

    def __init__(self, dropout: float, width: int, classes: int, *, cls_last: bool) -> None:
        """Make a layer for each of the three parts, and one for all."""
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
            ConfigError: no `spans_B4`.
        """
        if spans_B4 is None:
            message = "the entity head was given texts without marked entities"
            raise ConfigError(
                message, "set data.marked or data.columns.entities, or another model.head"
            )
        last_B1 = mask_BT.sum(1, keepdim=True) - 1
        whole_BH = _take(states_BTH, last_B1 if self.cls_last else last_B1 * 0).squeeze(1)
        read = (
            whole_BH,
            _mean(states_BTH, spans_B4[:, 0:1], spans_B4[:, 1:2]),
            _mean(states_BTH, spans_B4[:, 2:3], spans_B4[:, 3:4]),
        )
        made = [part(one) for part, one in zip(self.parts, read, strict=True)]
        logits: torch.Tensor = self.out(torch.cat(made, 1))
        return logits


def to_column_0(
    states_BTH: torch.Tensor, mask_BT: torch.Tensor, spans_B4: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Move texts that are padded on the left to column 0; their spans move along."""
    count_B1 = mask_BT.sum(1, keepdim=True)
    place_1T = torch.arange(mask_BT.shape[1], device=mask_BT.device).unsqueeze(0)
    start_B1 = mask_BT.shape[1] - count_B1
    from_BT = torch.clamp(place_1T + start_B1, max=mask_BT.shape[1] - 1)
    shifted = None if spans_B4 is None else spans_B4 - start_B1
    return _take(states_BTH, from_BT), (place_1T < count_B1).to(mask_BT.dtype), shifted


def _take(states_BTH: torch.Tensor, places_BK: torch.Tensor) -> torch.Tensor:
    """Return the states [B, K, H] at K places of each row."""
    return states_BTH.gather(1, places_BK.unsqueeze(2).expand(-1, -1, states_BTH.shape[2]))


def _mean(states_BTH: torch.Tensor, start_B1: torch.Tensor, end_B1: torch.Tensor) -> torch.Tensor:
    place_1T = torch.arange(states_BTH.shape[1], device=states_BTH.device).unsqueeze(0)
    inside_BT = ((place_1T >= start_B1) & (place_1T < end_B1)).to(states_BTH.dtype)
    total_BH = (states_BTH * inside_BT.unsqueeze(2)).sum(1)
    return total_BH / inside_BT.sum(1, keepdim=True).clamp(min=1)
