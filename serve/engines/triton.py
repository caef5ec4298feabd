"""Answers with another model of the same tritonserver, to which a call's arrays are passed on.

Shapes: B inputs of one call, C classes.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pipework.engine_record import Variant
from pipework.manifest import Manifest
from pipework.padding import Padding
from serve.collate import Collate
from serve.engines.collated import CollatedEngine

# Parameters of a text model's config that name the model behind it, and say whether its graph reads
# only the first token of a text.
TENSOR_MODEL, FIRST_ONLY = "tensor_model", "first_only"
Arrays = Mapping[str, NDArray[np.int64]]
Ask = Callable[[Arrays], NDArray[np.float32]]


class TritonEngine(CollatedEngine):
    """An Engine over a model that takes arrays by name and gives logits.

    That model may be loaded later than this is made, so nothing is asked before the first batch.
    """

    def __init__(self, ask: Ask, manifest: Manifest, variant: Variant, *, first_only: bool) -> None:
        """Take what asks the model: it gets the arrays of one call and gives logits [B, C].

        Args:
            ask: raises NotReadyError where the model does not answer.
            manifest: of the run, for what its inputs and labels look like.
            variant: what the model is.
            first_only: see `Collate`.
        """
        collate = Collate(
            layout=variant.layout,
            padding=Padding.of(manifest.input),
            spans=manifest.model.takes_spans,
            first_only=first_only,
            whole=True,  # it may stand on a GPU, to which one large call costs less than several
        )
        super().__init__(collate, classes=len(manifest.task.labels))
        self._ask = ask

    def _run(self, arrays: Arrays) -> NDArray[np.float32]:
        return self._ask(arrays)

    def close(self) -> None:
        """Do nothing: the model is the server's."""
