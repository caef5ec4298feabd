"""What the engines of this package share: inputs become calls, and their answers come in order.

Shapes: N inputs, B of one call, C classes.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipework.closing import Closing
from pipework.encoding import Encoding
from pipework.processor import processor
from serve.collate import Collate
from serve.costs import measure


class CollatedEngine(Closing):
    """An Engine over a runtime that takes arrays by name. Not for several threads at once.

    Attributes:
        collate: how inputs become calls.
        computed_tokens: that all calls of `infer` had computed, with those that fill up rows.
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
        self._classes = self._run(feed.arrays).shape[1]

    @property
    def processor(self) -> str:
        """What computes, as proofs name it."""
        return processor()

    @abstractmethod
    def _run(self, arrays: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the logits [B, C] of one call, float32, all finite or not."""

    def learn_costs(self, longest: int) -> None:
        """Measure what calls cost here, and cut them accordingly from now on.

        Args:
            longest: the most tokens of an input.
        """
        one_call = replace(self.collate, whole=True)

        def call(rows: int, width: int) -> None:
            (feed,) = one_call.feeds([self._made_up(width)] * rows)
            self._run(feed.arrays)

        self.collate = replace(self.collate, costs=measure(call, longest))

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C]; [0, C] for no inputs."""
        logits_NC = np.empty((len(encodings), self._classes), np.float32)
        for feed in self.collate.feeds(encodings):
            self.computed_tokens += feed.arrays["input_ids"].size
            logits_NC[feed.rows] = self._run(feed.arrays)
        return logits_NC

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
