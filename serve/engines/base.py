"""Base class of the engines: cuts a batch into calls and collects the outputs in input order.

Shapes: N inputs, R rows of the inputs of a call or of all, C logits.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.machine import processor
from pipework.serve.engines.collate import CPU, GPU, Collate, InputFeed, measure
from pipework.serve.engines.cuda import lost_gpu
from pipework.tasks.outputs import Outputs, rows_of
from pipework.text.encoding import Encoding

Arrays = Mapping[str, NDArray[np.int64]]
Logits = NDArray[np.float32]


class CollatedEngine(Closeable):
    """Base class of engines whose runtime takes arrays by name. Not thread-safe.

    Attributes:
        collate: cuts batches into calls.
        computed_tokens: number of tokens in all calls, including padding.
    """

    computed_tokens = 0

    def __init__(self, collate: Collate, classes: int | None = None) -> None:
        """Make a first call of one token, which checks the graph and gives the number of classes.

        Subclasses call this when their runtime is ready. A subclass whose model is not reachable
        yet passes the number of classes, and no call is made.
        """
        self.collate = collate
        if classes is not None:
            self._classes = classes
            return
        (feed,) = collate.feeds([self._dummy(1)])
        self._classes = self._start(feed.arrays)().shape[1]

    @property
    def processor(self) -> str:
        """Name of the processor that computes, as in parity records."""
        return processor()

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes."""
        return False

    def lost_gpu(self) -> str:
        """Return why no engine can compute any more in this process, see `cuda.lost_gpu`, or ""."""
        return lost_gpu() if self.on_gpu else ""

    @abstractmethod
    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        """Start one call; the returned function waits for its logits [R, C], finite or not."""

    def learn_costs(self, longest: int) -> None:
        """Measure the cost of calls on this machine and use it to cut batches.

        Args:
            longest: the most tokens of an input.
        """
        one_call = replace(self.collate, whole=True)

        def call(rows: int, width: int) -> None:
            (feed,) = one_call.feeds([self._dummy(width)] * rows)
            self._start(feed.arrays)()

        self.collate = replace(self.collate, costs=measure(call, longest))

    def fix_costs(self) -> None:
        """Use constant costs to cut batches, so that results are the same on every day."""
        self.collate = replace(self.collate, costs=GPU if self.on_gpu else CPU)

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs."""
        return self.start(encodings)()

    def infer_whole(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs, computed in one call unless the engine limits calls."""
        collate = self.collate
        self.collate = replace(collate, whole=True)
        try:
            return self.infer(encodings)
        finally:
            self.collate = collate

    def start(self, encodings: Sequence[Encoding]) -> Callable[[], Outputs]:
        """Start the first call; the returned function computes the rest and returns the outputs.

        No other call may be started until it has returned.
        """
        feeds = self._feeds(encodings)
        first = next(feeds, None)
        first_wait = first and self._start(first.arrays)

        def finish() -> Outputs:
            offsets = self.collate.row_offsets([len(encoding) for encoding in encodings])
            logits_RC = np.empty((int(offsets[-1]), self._classes), np.float32)
            feed, wait = first, first_wait
            while feed and wait:
                try:
                    following = next(feeds, None)  # prepared while the runtime computes
                finally:
                    # Always: a started call must be finished.
                    logits_RC[rows_of(offsets, feed.rows)] = wait()
                self.computed_tokens += feed.arrays["input_ids"].size
                feed, wait = following, following and self._start(following.arrays)
            return Outputs(logits_RC, offsets)

        return finish

    def _feeds(self, encodings: Sequence[Encoding]) -> Iterator[InputFeed]:
        """Yield the calls for a batch; every input is in exactly one."""
        return self.collate.feeds(encodings)

    def _dummy(self, tokens: int) -> Encoding:
        return Encoding(
            ids=np.full(tokens, self.collate.padding.pad_id, np.int32),
            type_ids=np.zeros(tokens, np.int8),
            entity_spans=((0, 1), (0, 1)),
        )


def check_names(inputs: set[str], outputs: set[str], collate: Collate) -> None:
    """Check that a graph takes the arrays of `collate` and returns logits.

    Raises:
        ValueError: the names differ; the message has both lists.
    """
    if inputs != collate.names:
        message = f"expected inputs {_listed(collate.names)}, found {_listed(inputs)}"
        raise ValueError(message)
    if outputs != {"logits"}:
        message = f"expected the output logits, found {_listed(outputs)}"
        raise ValueError(message)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
