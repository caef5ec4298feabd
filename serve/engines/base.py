"""What the engines of this package share: inputs become calls, and their answers come in order.

Shapes: N inputs, B of one call, C classes.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closing
from pipework.cpu import processor
from pipework.serve.engines.call_costs import measure
from pipework.serve.engines.collate import Collate, Feed
from pipework.text.encoding import Encoding

Arrays = Mapping[str, NDArray[np.int64]]
Logits = NDArray[np.float32]


class CollatedEngine(Closing):
    """An Engine over a runtime that takes arrays by name. Not for several threads at once.

    Attributes:
        collate: how inputs become calls.
        computed_tokens: that all calls had computed, with those that fill up rows.
    """

    computed_tokens = 0

    def __init__(self, collate: Collate, classes: int | None = None) -> None:
        """Make a first call, of one token: it shows that the graph runs, and the number of classes.

        A subclass calls this when its runtime is ready. One that cannot be asked yet gives the
        number of classes, and no call is made.
        """
        self.collate = collate
        if classes is not None:
            self._classes = classes
            return
        (feed,) = collate.feeds([self._made_up(1)])
        self._classes = self._start(feed.arrays)().shape[1]

    @property
    def processor(self) -> str:
        """What computes, as proofs name it."""
        return processor()

    @abstractmethod
    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        """Begin one call; what is returned waits for its logits [B, C], all finite or not."""

    def learn_costs(self, longest: int) -> None:
        """Measure what calls cost here, and cut them accordingly from now on.

        Args:
            longest: the most tokens of an input.
        """
        one_call = replace(self.collate, whole=True)

        def call(rows: int, width: int) -> None:
            (feed,) = one_call.feeds([self._made_up(width)] * rows)
            self._start(feed.arrays)()

        self.collate = replace(self.collate, costs=measure(call, longest))

    def infer(self, encodings: Sequence[Encoding]) -> Logits:
        """Return logits [N, C]; [0, C] for no inputs."""
        return self.start(encodings)()

    def start(self, encodings: Sequence[Encoding]) -> Callable[[], Logits]:
        """Begin with what `infer` waits for; nothing else may be asked until it has ended."""
        feeds = self._feeds(encodings)
        first = next(feeds, None)
        begun = first and self._start(first.arrays)

        def finish() -> Logits:
            logits_NC = np.empty((len(encodings), self._classes), np.float32)
            feed, wait = first, begun
            while feed and wait:
                try:
                    coming = next(feeds, None)  # made while the runtime computes
                finally:
                    logits_NC[feed.rows] = wait()  # whatever happens, it is not left computing
                self.computed_tokens += feed.arrays["input_ids"].size
                feed, wait = coming, coming and self._start(coming.arrays)
            return logits_NC

        return finish

    def _feeds(self, encodings: Sequence[Encoding]) -> Iterator[Feed]:
        """Yield the calls that answer a batch; every input is in one of them."""
        return self.collate.feeds(encodings)

    def _made_up(self, tokens: int) -> Encoding:
        return Encoding(
            ids=np.full(tokens, self.collate.padding.pad_id, np.int32),
            type_ids=np.zeros(tokens, np.int8),
            entity_spans=((0, 1), (0, 1)),
        )


def check_names(inputs: set[str], outputs: set[str], collate: Collate) -> None:
    """Check that a graph takes what `collate` makes and gives logits.

    Raises:
        ValueError: with both lists.
    """
    if inputs != collate.names:
        message = f"expected inputs {_listed(collate.names)}, found {_listed(inputs)}"
        raise ValueError(message)
    if outputs != {"logits"}:
        message = f"expected the output logits, found {_listed(outputs)}"
        raise ValueError(message)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
