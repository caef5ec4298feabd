"""Answers with ONNX Runtime: with CUDA where the package can and a GPU is there, else on the CPU.

The graph takes the arrays of `pipework.serve.engines.collate.Collate` and gives logits, float32 [B, C].

Shapes: B inputs of one call, C classes.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from pipework.errors import MissingDependencyError, PipeError, RunFolderError
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits, check_names
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cpu_threads import Behind, cpu_limit
from pipework.serve.engines.cuda import Gpu, NoGpuError, find_gpu

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# By itself CUDA multiplies float32 in TF32, of 10 bits, on every GPU since Ampere.
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {CPU: {}, CUDA: {"use_tf32": "0"}}
log = logging.getLogger(__name__)


class OnnxRuntimeEngine(CollatedEngine):
    """An Engine over an ONNX file. Not for use from several threads at once."""

    def __init__(self, path: Path, collate: Collate, *, threads: int | None = None) -> None:
        """Load the graph.

        Args:
            path: the .onnx file.
            collate: how inputs become the arrays of the graph.
            threads: threads of the runtime; None for as many as the container may use.

        Raises:
            RunFolderError: the file is not a graph, or its inputs and outputs are not the above.
            MissingDependencyError: the GPU that is there cannot be reached, or not taken.
        """
        self._gpu = _gpu()
        provider = CPU if self._gpu is None else CUDA
        self._behind = Behind()
        try:
            self._session = self._behind.call(
                lambda: ort.InferenceSession(
                    str(path),
                    _options(threads or cpu_limit()),
                    providers=[provider],
                    provider_options=[PROVIDER_OPTIONS[provider]],
                )
            )
            _check_taken(self._session.get_providers(), provider)
            inputs = {node.name: node for node in self._session.get_inputs()}
            outputs = {node.name for node in self._session.get_outputs()}
            check_names({*inputs}, outputs, collate)
            index = inputs.get("text_index")
            super().__init__(collate.reading(first_only=index is None or index.shape[1] == 1))
        except PipeError:
            self.close()
            raise
        except Exception as error:  # the runtime's errors share no narrower base
            self.close()
            message = f"{path} is not a graph to serve: {str(error).splitlines()[0]}"
            raise RunFolderError(message, "make it again: pipe export RUN --to onnx") from error

    @property
    def processor(self) -> str:
        """The GPU, or the CPU."""
        return super().processor if self._gpu is None else self._gpu.name

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        begun = self._behind.start(lambda: self._session.run(["logits"], dict(arrays)))
        return lambda: np.asarray(begun.result()[0], np.float32)

    def close(self) -> None:
        """Free the graph and its threads. Closing twice is allowed."""
        self._behind.close()
        self._session = None


def _gpu() -> Gpu | None:
    """Return the GPU to compute on, or None for the CPU."""
    if CUDA not in ort.get_available_providers():
        return None
    try:
        return find_gpu()
    except NoGpuError as reason:
        log.info("onnxruntime computes on the CPU: %s", reason)
        return None


def _check_taken(taken: Sequence[str], provider: str) -> None:
    """Check that the runtime took what it was given: without CUDA's libraries it takes the CPU.

    Raises:
        MissingDependencyError: it did not.
    """
    if taken[0] != provider:
        message = (
            f"onnxruntime took {taken[0]} in place of {provider}: CUDA or cuDNN is not complete"
        )
        hint = "pip install 'onnxruntime-gpu[cuda,cudnn]', or hide the GPU: CUDA_VISIBLE_DEVICES=''"
        raise MissingDependencyError(message, hint)


def _options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; its warnings are about graphs, for exporters
    # Both keep memory for every shape they meet, and lengths vary without end. Measured without
    # them: the same tokens per second, and memory that falls again after a large batch.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Spinning threads take the cores from the event loop: with other work on the machine they
    # cost a third (6 layers) to a half (2 layers) of the tokens per second.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
