"""The batches of a parity check: the sizes and lengths in which servers and bulk jobs compute."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pipework.export.parity.case import ProofBatch, batch_mixes
from pipework.export.rows.edge_cases import Row
from pipework.run_folder.engine_record import Layout
from pipework.scoring.evaluation import CHUNK
from pipework.serve.config import BATCH_TOKENS
from pipework.serve.engines.collate import CPU, GPU, PACKED_SLACK, ROW_TOKENS
from pipework.tasks.outputs import Outputs
from pipework.text.packing import max_row_width

CALL_TOKENS = 4096  # of large calls: more than the calls of servers and bulk jobs on a CPU
EVERY_COUNT = 70  # every number of texts up to this is checked, and RANDOM_COUNTS larger ones
RANDOM_COUNTS = 30
SERVED_ROWS = 256  # rows of dev that run as in a server
TWICE = 7  # edge cases run twice in batches of this size
WIDE = 16  # tokens of a longer text in calls of the packed layout with many texts
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroup:
    """Inputs with the checkpoint's outputs; they are numbered from `first`."""

    rows: Sequence[Row]
    expected: Outputs
    first: int

    def batch(
        self, indices: Sequence[int], rule: str, *, whole: bool = True, twice: bool = False
    ) -> ProofBatch:
        """Return a batch of the inputs at `indices`."""
        return ProofBatch(
            rows=[self.rows[index] for index in indices],
            inputs=[self.first + index for index in indices],
            rule=rule,
            whole=whole,
            expected=self.expected.take(indices),
            twice=twice,
        )

    def thinned(self, most: int) -> "RowGroup":
        """Return inputs spread over the group: all, or from `most` to twice as many."""
        step = max(1, len(self.rows) // most)
        expected = self.expected.take(range(0, len(self.rows), step))
        return replace(self, rows=self.rows[::step], expected=expected)

    def cut(self, rule: str, size: int, *, whole: bool = False) -> Iterator[ProofBatch]:
        """Yield all inputs in batches of a size."""
        for start in range(0, len(self.rows), size):
            stop = min(start + size, len(self.rows))
            yield self.batch(range(start, stop), rule, whole=whole)


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """The inputs of a parity check, see `RunRows`; the labels of `edge` and `dev` are compared."""

    edge: RowGroup
    dev: RowGroup
    vocabulary: RowGroup
    lengths: RowGroup
    short: RowGroup

    def whole_calls(self, layout: Layout, *, on_gpu: bool) -> Iterator[ProofBatch]:
        """Yield the batches that run as one call.

        They are the edge cases in several mixes; an input of each length alone, and in the packed
        layout next to an input of the largest length, which gives all wider rows; calls with many
        short inputs; and large calls.
        """
        for mix in batch_mixes([len(row.encoding) for row in self.edge.rows]):
            yield self.edge.batch(mix.rows, mix.rule, twice=len(mix.rows) == TWICE)
        yield from self.lengths.cut("alone", 1, whole=True)
        if layout is Layout.PACKED:
            yield from self._wide_rows()
        yield from self._many_texts(layout, on_gpu=on_gpu)
        longest = max(len(row.encoding) for row in self.edge.rows)
        yield from self.vocabulary.cut("large call", -(-CALL_TOKENS // longest), whole=True)

    def _wide_rows(self) -> Iterator[ProofBatch]:
        lengths = [len(row.encoding) for row in self.lengths.rows]
        widest = max_row_width(lengths[-1], ROW_TOKENS) if lengths else 0
        for index, length in enumerate(lengths):
            if lengths[-1] + length <= widest:
                yield self.lengths.batch([len(lengths) - 1, index], "a wide row")

    def _many_texts(self, layout: Layout, *, on_gpu: bool) -> Iterator[ProofBatch]:
        rows = len(self.short.rows)
        if not rows:
            return
        tokens = (GPU if on_gpu else CPU).most_tokens
        if layout is not Layout.PADDED:
            tokens = round(PACKED_SLACK * tokens)
        usual = min(CHUNK, tokens // len(self.short.rows[0].encoding))
        for count in text_counts(usual):
            # Calls of a similar size have other texts at each place.
            places = [(7 * count + place) % rows for place in range(count)]
            batch = self.short.batch(places, f"{count} short texts")
            # Rows of only short texts are narrow, and their padding costs more than their texts.
            wide = layout is Layout.PACKED and count > EVERY_COUNT
            yield self._with_longer(batch) if wide else batch

    def _with_longer(self, batch: ProofBatch) -> ProofBatch:
        lengths = [len(row.encoding) for row in self.lengths.rows]
        longer = self.lengths.batch([bisect_left(lengths, WIDE) % len(lengths)], "")
        return replace(
            batch,
            rows=[*batch.rows[1:], *longer.rows],
            inputs=[*batch.inputs[1:], *longer.inputs],
            expected=Outputs.concatenate(
                [batch.expected.part(1, len(batch.rows)), longer.expected]
            ),
        )

    def as_in_server(self, tokens: int = BATCH_TOKENS) -> Iterator[ProofBatch]:
        """Yield rows of dev in batches of the tokens that a server gives to an engine."""
        count = min(SERVED_ROWS, len(self.dev.rows))
        chosen = np.linspace(0, len(self.dev.rows) - 1, count).astype(np.int64).tolist()
        lengths = [len(self.dev.rows[index].encoding) for index in chosen]
        batches = np.cumsum(lengths) // tokens
        starts = [*np.flatnonzero(np.diff(batches, prepend=-1)).tolist(), count]
        for start, stop in pairwise(starts):
            yield self.dev.batch(chosen[start:stop], "as in the server", whole=False)


def text_counts(most: int) -> list[int]:
    """Return the numbers of texts in the calls with short texts, up to `most`.

    They are every small number, the powers of two with their neighbours, and some drawn ones.
    """
    every = min(EVERY_COUNT, most)
    powers = [2**power for power in range(most.bit_length())]
    near = {power + step for power in powers for step in (-1, 0, 1)}
    random = np.random.default_rng(SEED)
    drawn = np.exp(random.uniform(np.log(every), np.log(most), RANDOM_COUNTS)).round().astype(int)
    counts = {*range(1, every + 1), *near, most, *drawn.tolist()}
    return sorted(count for count in counts if 1 <= count <= most)
