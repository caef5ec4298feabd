"""A batch becomes the calls that an engine makes: micro-batches of like lengths, or packed rows.

Shapes: N inputs of a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.call_costs import CPU, Costs
from pipework.text.encoding import Encoding
from pipework.text.packing import even_bins, even_rows, pack
from pipework.text.padding import Padding, pad

ROW_TOKENS = 256  # the most of a packed row: attention costs the square of it
# How much larger packed calls may be than costs say, so that a batch that is little larger than a
# call stays whole: cut in two it takes 4 % longer (on a CPU, int8, MiniLM, batches of 1,020 tokens
# on average, calls of 1,024).
OVER = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """One call: which inputs it answers, in the order of its logits, and the graph's arrays."""

    rows: Sequence[int]
    arrays: dict[str, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collate:
    """How inputs become the arrays of a graph.

    Attributes:
        layout: padded or packed.
        padding: how rows are filled up, and whether there are type ids.
        spans: whether the graph takes the places of two entities.
        first_only: of a packed graph, whether it reads the state of the first token only.
        whole: whether each batch is one call whatever it costs, as a proof over given shapes
            wants it.
        row_tokens: the most tokens of a packed row before it is filled up, a longer input
            excepted.
        row_step: what the widths of packed rows are multiples of.
        costs: how calls are cut.
    """

    layout: Layout
    padding: Padding
    spans: bool
    first_only: bool = True
    whole: bool = False
    row_tokens: int = ROW_TOKENS
    row_step: int = 1
    costs: Costs = CPU

    @property
    def names(self) -> set[str]:
        """The names of the arrays."""
        names = {"input_ids"}
        if self.layout is Layout.PADDED:
            names.add("attention_mask")
        else:
            names |= {"position_ids", "segment_ids", "text_index"}
        names |= {"token_type_ids"} if self.padding.type_ids else set()
        return names | ({"entity_spans"} if self.spans else set())

    def reading(self, *, first_only: bool) -> "Collate":
        """Return the same for a graph that reads the first token only, or all."""
        return replace(self, first_only=first_only)

    def feeds(self, encodings: Sequence[Encoding]) -> Iterator[Feed]:
        """Yield the calls that answer a batch; every input is in one of them."""
        if not encodings:
            return
        lengths_N = [len(encoding) for encoding in encodings]
        if self.layout is Layout.PACKED:
            whole = [[*range(len(lengths_N))]]
            most = round(OVER * self.costs.most_tokens)
            for call in whole if self.whole else even_bins(lengths_N, most):
                yield self._packed([encodings[index] for index in call], call)
            return
        batches = [[*range(len(lengths_N))]] if self.whole else plan(lengths_N, self.costs)
        for batch in batches:
            padded = pad([encodings[index] for index in batch], self.padding)
            yield Feed(rows=batch, arrays=self._taken(padded.inputs()))

    def _packed(self, encodings: Sequence[Encoding], places: Sequence[int]) -> Feed:
        rows = even_rows([len(one) for one in encodings], self.row_tokens, self.row_step)
        packed = pack(encodings, rows, self.padding, first_only=self.first_only, step=self.row_step)
        return Feed(rows=places, arrays=self._taken(packed.inputs()))

    def _taken(self, arrays: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
        # A text with entities has spans, which a head that only reads the marks does not take.
        return {name: arrays[name] for name in sorted(self.names)}


def plan(lengths_N: Sequence[int], costs: Costs) -> list[list[int]]:
    """Cut a batch into micro-batches of like lengths.

    Args:
        lengths_N: tokens of each input.
        costs: of calls. An input that is longer than the most tokens of a call gets a
            micro-batch of its own.

    Returns:
        Indices of the inputs of each micro-batch, shortest first; every input occurs once.
    """
    batches: list[list[int]] = []
    tokens = 0  # without padding, of the last micro-batch
    for index in sorted(range(len(lengths_N)), key=lengths_N.__getitem__):
        length = lengths_N[index]
        padded = length * (len(batches[-1]) + 1) if batches else 0
        fits = padded <= costs.most_tokens and padded - tokens - length <= costs.call_tokens
        if batches and fits:
            batches[-1].append(index)
            tokens += length
        else:
            batches.append([index])
            tokens = length
    return batches
