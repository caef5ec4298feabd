"""Which rows are learned together: one list for all processes, and what each takes of it.

Shapes: N rows, B rows of a batch.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
MEGABATCH = 50
BATCH_TOKENS = 4096  # of a batch that is only answered, padding included


def length_grouped(
    lengths_N: NDArray[np.int64], batch_size: int, random: np.random.Generator
) -> Iterator[Rows]:
    """Yield the rows of each batch of one epoch: every row once, like lengths together.

    Rows are shuffled, cut into megabatches, sorted by length inside each and cut into batches,
    whose order is shuffled again, but for the longest, which comes first: memory is taken once for
    all, and if there is too little, that shows at once. Where one megabatch holds all rows the sort
    would make the same batches each epoch, so lengths get a tenth of noise.
    """
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


class Windows:
    """The batches of a whole run, in windows of as many as make one step.

    An epoch's batches depend on the seed and its number alone, so that a run can begin at any
    step, with any number of processes. The last window of an epoch may be shorter. `numbered`
    windows tell the epochs apart: row r of epoch e comes as e x N + r.
    """

    def __init__(
        self,
        lengths_N: NDArray[np.int64],
        *,
        batch_size: int,
        accumulate: int,
        seed: int,
        numbered: bool = False,
    ) -> None:
        """Cut nothing yet: batches are made when their epoch comes."""
        self._lengths_N = lengths_N
        self._batch_size = batch_size
        self._accumulate = accumulate
        self._seed = seed
        self._numbered = numbered
        batches = -(-len(lengths_N) // batch_size)
        self.per_epoch = -(-batches // accumulate)

    def rows_until(self, step: int) -> int:
        """Return how many rows are learned in so many steps, each as often as it comes."""
        epochs, rest = divmod(step, self.per_epoch)
        rows = len(self._lengths_N)
        return epochs * rows + min(rows, rest * self._batch_size * self._accumulate)

    def start(self, step: int) -> Iterator[list[Rows]]:
        """Yield the windows after so many steps, without end."""
        epoch, done = divmod(step, self.per_epoch)
        while True:
            random = np.random.default_rng((self._seed, epoch))
            first_row = epoch * len(self._lengths_N) if self._numbered else 0
            grouped = length_grouped(self._lengths_N, self._batch_size, random)
            batches = [batch + first_row for batch in grouped]
            for first in range(done * self._accumulate, len(batches), self._accumulate):
                yield batches[first : first + self._accumulate]
            epoch, done = epoch + 1, 0


def share(rows_B: Rows, rank: int, size: int) -> Rows:
    """Return the rows of a batch that one of `size` processes takes; there may be none.

    Every row goes to one process. A batch is sorted by length, so all get like lengths.
    """
    return rows_B[rank::size]


def token_batches(lengths_N: NDArray[np.int64], rows: Rows, tokens: int) -> Iterator[Rows]:
    """Cut rows, sorted by length, into batches of at most so many tokens, padding included.

    A row that is longer has a batch of its own.
    """
    start = 0
    for end in range(1, len(rows) + 1):
        full = end == len(rows) or (end - start + 1) * int(lengths_N[rows[end]]) > tokens
        if full:
            yield rows[start:end]
            start = end


def rows_in(window: Sequence[Rows]) -> int:
    """Count the rows of a window."""
    return sum(map(len, window))
