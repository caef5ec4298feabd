"""Calls of an ONNX Runtime session on an NVIDIA GPU.

By default a call copies arrays from and to pageable memory, which is not asynchronous, and waits
for the GPU before and after it copies the results. Here all copies go through page-locked buffers,
on the stream of the session, and a call waits once, for its results. See
https://onnxruntime.ai/docs/performance/device-tensor.html

Small calls take as long as the CPU needs to launch their kernels. Calls of fixed sizes launch them
all at once, as a CUDA graph, which the session captures in the first calls of each size. See
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html

Shapes: R rows of the inputs of a call, C logits.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.serve.engines.cuda import DeviceArrays
from pipework.text.packing import LENGTHS, OFFSET, Bucket

if TYPE_CHECKING:
    import onnxruntime as ort

Arrays = Mapping[str, NDArray[np.int64]]
DEVICE, NUMBER = "cuda", 0  # CUDA_VISIBLE_DEVICES selects the GPU
LOGITS = "logits"
# Memory of larger calls is returned to the GPU: servers and bulk jobs make none.
LARGE_TOKENS = 32_768
# Tokens of the calls that are captured. Above, kernels take longer than their launches.
GRAPH_TOKENS = (512, 1024, 2048, 4096, 8192, 16_384)
TOKENS_PER_TEXT = 8  # at least, so that the number of texts is fixed, too
NO_GRAPH = -1
# Held while a session captures a graph: then no thread of the process may allocate or free memory
# of the GPU, which launches, opening and closing do.
ALLOCATING = threading.RLock()
UNREAD = {OFFSET}  # the kernels of a CUDA graph read its shape only


def graph_buckets(longest: int) -> tuple[Bucket, ...]:
    """Return the sizes of the calls that are captured, for texts of up to `longest` tokens."""
    return tuple(
        Bucket(tokens=tokens, inputs=tokens // TOKENS_PER_TEXT, longest=longest)
        for tokens in GRAPH_TOKENS
    )


class CudaCalls(Closeable):
    """The buffers of a session, and its calls. Not thread-safe.

    Attributes:
        buckets: sizes of the calls that the session captures.
    """

    def __init__(self, buckets: Sequence[Bucket] = ()) -> None:
        """Create the stream.

        Raises:
            RuntimeError: the GPU has too little memory.
        """
        self._arrays = DeviceArrays({})
        self.buckets = tuple(buckets)
        self._bindings: dict[int, ort.IOBinding] = {}
        self._columns = 0  # C, after the first call

    @property
    def options(self) -> dict[str, str]:
        """Options of the CUDA provider of the session."""
        graphs = {"enable_cuda_graph": "1"} if self.buckets else {}
        return {"user_compute_stream": str(self._arrays.stream)} | graphs

    def run(self, session: "ort.InferenceSession", arrays: Arrays) -> NDArray[np.float32]:
        """Return the logits [R, C] of a call; in a bucket, those of the inputs that are not empty.

        Args:
            session: the session.
            arrays: the inputs of its graph.
        """
        graph = self._graph(arrays)
        filled = np.count_nonzero(np.diff(arrays[LENGTHS])) if graph != NO_GRAPH else None
        if not self._columns:
            graph = NO_GRAPH
        with ALLOCATING:
            binding = self._bind(session, arrays, graph)
            session.run_with_iobinding(binding, self._run_options(arrays["input_ids"].size, graph))
            self._bindings[graph] = binding
            (logits,) = binding.get_outputs()
            rows, self._columns = shape = tuple(logits.shape())
            buffer = self._buffer(graph, LOGITS, 4 * rows * self._columns)
        found: NDArray[Any] = self._arrays.download_from(
            logits.data_ptr(), buffer, shape, np.float32
        )
        return found[:filled]

    def _bind(self, session: "ort.InferenceSession", arrays: Arrays, graph: int) -> "ort.IOBinding":
        """Copy the inputs of a call to the GPU; return the addresses of inputs and output."""
        first = graph not in self._bindings
        binding = session.io_binding() if first else self._bindings[graph]
        for name, array in arrays.items():
            if first or graph == NO_GRAPH or name not in UNREAD:
                buffer = self._buffer(graph, name, array.nbytes)
                self._arrays.upload(buffer, array)
                address = self._arrays.address(buffer)
                binding.bind_input(name, DEVICE, NUMBER, array.dtype, array.shape, address)
        if graph == NO_GRAPH:
            binding.bind_output(LOGITS, DEVICE, NUMBER)
        elif first:
            shape = (len(arrays["text_index"]), self._columns)
            address = self._arrays.address(self._buffer(graph, LOGITS, 4 * shape[0] * shape[1]))
            binding.bind_output(LOGITS, DEVICE, NUMBER, np.float32, shape, address)
        return binding

    def _graph(self, arrays: Arrays) -> int:
        """Return the number of the CUDA graph of a call, one for each bucket, or `NO_GRAPH`."""
        tokens = arrays["input_ids"].size
        for number, bucket in enumerate(self.buckets):
            if (tokens, arrays[LENGTHS].size) == (bucket.tokens, bucket.inputs + 1):
                return number
        return NO_GRAPH

    def _buffer(self, graph: int, name: str, size: int) -> str:
        """Return the name of a buffer, which has the same address in all calls of a CUDA graph."""
        buffer = f"{name} of graph {graph}"
        self._arrays.reserve(buffer, size)
        return buffer

    def _run_options(self, tokens: int, graph: int) -> "ort.RunOptions":
        """Return the options of a call, which do not wait for the GPU."""
        import onnxruntime as ort  # noqa: PLC0415  (optional)

        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        options.add_run_config_entry("gpu_graph_id", str(graph))
        if tokens > LARGE_TOKENS and not self.buckets:  # CUDA graphs use the same memory
            shrinkage = f"gpu:{NUMBER}"
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
        return options

    def release(self) -> None:
        """Release the bindings of the session, so that it can be freed before its stream."""
        self._bindings.clear()

    def close(self) -> None:
        """Free the buffers. Closing twice is allowed."""
        self.release()
        self._arrays.close()
