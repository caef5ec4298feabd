"""Build the batches of a training run, and split each batch between processes.

Shapes: N rows, B rows of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
MEGABATCH = 50
BATCH_TOKENS = 4096  # per evaluation batch, padding included


def length_grouped(
    lengths_N: NDArray[np.int64], batch_size: int, random: np.random.Generator
) -> Iterator[Rows]:
    """Yield the row indices of each batch of an epoch: every row once, similar lengths together.

    Rows are shuffled, split into megabatches, sorted by length inside each and split into batches,
    whose order is shuffled. The batch with the longest row comes first.
    """
    # The longest batch comes first so that memory is allocated once, and a lack of memory shows at
    # once. If a megabatch holds all rows, sorting would give the same batches in each epoch;
    # therefore lengths get 10 % of noise.
    order_N = random.permutation(len(lengths_N))
    key_N = lengths_N * random.uniform(0.9, 1.1, len(lengths_N))
    if len(order_N) > MEGABATCH * batch_size:
        key_N = lengths_N.astype(np.float64)
    batches = []
    for start in range(0, len(order_N), MEGABATCH * batch_size):
        mega = order_N[start : start + MEGABATCH * batch_size]
        mega = mega[np.argsort(key_N[mega], kind="stable")]
        batches += [mega[i : i + batch_size] for i in range(0, len(mega), batch_size)]
    order = random.permutation(len(batches)).tolist()
    order.remove(longest := int(np.argmax([lengths_N[batch].max() for batch in batches])))
    for index in (longest, *order):
        yield batches[index]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBatches:
    """The batches of a whole run, grouped into windows of `accumulate` batches, one per step.

    The batches of an epoch depend only on the seed and the epoch, so that a run can be resumed at
    any step, with any number of processes. The last window of an epoch may be shorter. With
    `numbered`, row r of epoch e has the index e x N + r.
    """

    lengths_N: NDArray[np.int64]
    batch_size: int
    accumulate: int
    seed: int
    numbered: bool = False

    @property
    def per_epoch(self) -> int:
        """The number of steps of an epoch."""
        batches = -(-len(self.lengths_N) // self.batch_size)
        return -(-batches // self.accumulate)

    def rows_until(self, step: int) -> int:
        """Return the number of rows in the first `step` steps, repeated rows included."""
        epochs, rest = divmod(step, self.per_epoch)
        rows = len(self.lengths_N)
        return epochs * rows + min(rows, rest * self.batch_size * self.accumulate)

    def start(self, step: int) -> Iterator[list[Rows]]:
        """Yield the windows after the first `step` steps, without end."""
        epoch, done = divmod(step, self.per_epoch)
        while True:
            random = np.random.default_rng((self.seed, epoch))
            first_row = epoch * len(self.lengths_N) if self.numbered else 0
            grouped = length_grouped(self.lengths_N, self.batch_size, random)
            batches = [batch + first_row for batch in grouped]
            for first in range(done * self.accumulate, len(batches), self.accumulate):
                yield batches[first : first + self.accumulate]
            epoch, done = epoch + 1, 0


def rank_share(rows_B: Rows, rank: int, size: int) -> Rows:
    """Return the rows of a batch for process `rank` of `size`; there may be none.

    Every row belongs to one process. All processes get similar lengths, because a batch is sorted
    by length.
    """
    return rows_B[rank::size]


def token_batches(lengths_N: NDArray[np.int64], rows: Rows, tokens: int) -> Iterator[Rows]:
    """Split rows, sorted by length, into batches of at most `tokens` tokens, padding included.

    A longer row has its own batch.
    """
    start = 0
    for end in range(1, len(rows) + 1):
        full = end == len(rows) or (end - start + 1) * int(lengths_N[rows[end]]) > tokens
        if full:
            yield rows[start:end]
            start = end
