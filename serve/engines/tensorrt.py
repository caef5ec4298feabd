"""Answers with TensorRT, on a machine with an NVIDIA GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pipework.errors import MissingDependencyError
from serve.collate import Collate
from serve.engines.collated import CollatedEngine


class TensorRtEngine(CollatedEngine):
    """An Engine over a serialized TensorRT engine."""

    def __init__(self, path: Path, collate: Collate) -> None:
        """Deserialize the engine.

        Raises:
            MissingDependencyError: there is no GPU, or no TensorRT.
        """
        del collate
        message = f"{path} needs a GPU"
        raise MissingDependencyError(message)

    def _run(self, arrays: Mapping[str, NDArray[np.int64]]) -> NoReturn:
        raise NotImplementedError

    def close(self) -> None:
        """Free the engine."""
