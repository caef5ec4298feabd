"""Calls of an ONNX Runtime session on an NVIDIA GPU.

By default a call copies arrays from and to pageable memory, which is not asynchronous, and waits
for the GPU before and after it copies the results. Here all copies go through page-locked buffers,
on the stream of the session, and a call waits once, for its results. See
https://onnxruntime.ai/docs/performance/device-tensor.html

Shapes: R rows of the inputs of a call, C logits.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.serve.engines.cuda import DeviceArrays

if TYPE_CHECKING:
    import onnxruntime as ort

DEVICE, NUMBER = "cuda", 0  # CUDA_VISIBLE_DEVICES selects the GPU
LOGITS = "logits"
# Memory of larger calls is returned to the GPU: servers and bulk jobs make none.
LARGE_TOKENS = 32_768


class CudaCalls(Closeable):
    """The buffers of a session, and its calls. Not thread-safe."""

    def __init__(self) -> None:
        """Create the stream.

        Raises:
            RuntimeError: the GPU has too little memory.
        """
        self._arrays = DeviceArrays({})
        self._binding: ort.IOBinding | None = None

    @property
    def options(self) -> dict[str, str]:
        """Options of the CUDA provider of the session."""
        return {"user_compute_stream": str(self._arrays.stream)}

    def run(
        self, session: "ort.InferenceSession", arrays: Mapping[str, NDArray[np.int64]]
    ) -> NDArray[np.float32]:
        """Return the logits [R, C] of a call."""
        binding = self._binding = self._binding or session.io_binding()
        for name, array in arrays.items():
            self._arrays.reserve(name, array.nbytes)
            self._arrays.upload(name, array)
            address = self._arrays.address(name)
            binding.bind_input(name, DEVICE, NUMBER, array.dtype, array.shape, address)
        binding.bind_output(LOGITS, DEVICE, NUMBER)
        session.run_with_iobinding(binding, _run_options(arrays["input_ids"].size))
        (logits,) = binding.get_outputs()
        shape = tuple(logits.shape())
        self._arrays.reserve(LOGITS, 4 * int(np.prod(shape)))
        found: NDArray[Any] = self._arrays.download_from(
            logits.data_ptr(), LOGITS, shape, np.float32
        )
        return found

    def close(self) -> None:
        """Free the buffers. Closing twice is allowed."""
        self._binding = None
        self._arrays.close()


def _run_options(tokens: int) -> "ort.RunOptions":
    """Return the options of a call, which do not wait for the GPU."""
    import onnxruntime as ort  # noqa: PLC0415  (optional)

    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if tokens > LARGE_TOKENS:
        shrinkage = f"gpu:{NUMBER}"
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options
