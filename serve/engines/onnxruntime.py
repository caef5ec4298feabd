"""Engine for ONNX Runtime: on CUDA if the package supports it and there is a GPU, else on the CPU.

The graph takes the arrays of `pipework.serve.engines.collate.Collate` and returns logits, float32
[B, C].

Shapes: B inputs of one call, C classes.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pipework.errors import MissingDependencyError, PipeError, RunFolderError
from pipework.machine import LowPriorityThread, cpu_limit
from pipework.run_folder.engine_record import EngineBuild, Layout, Precision, Scaling, Variant
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits, check_names
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cuda import HINT, Gpu, NoGpuError, check_driver, find_gpu
from pipework.serve.engines.cuda_calls import ALLOCATING, CudaCalls, graph_buckets
from pipework.serve.engines.cuda_libraries import DRIVER, load_cuda_libraries
from pipework.serve.engines.runtime import (
    Runtime,
    TritonForm,
    Usability,
    check_installed,
    cpu_usability,
)

if TYPE_CHECKING:
    import onnxruntime as ort

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {
    CPU: {},
    CUDA: {
        # By default CUDA multiplies float32 in TF32 (10-bit mantissa) on every GPU since Ampere.
        "use_tf32": "0",
        # The default, EXHAUSTIVE, measures all algorithms again for each new shape of a batch.
        "cudnn_conv_algo_search": "HEURISTIC",
        # By default the memory pool doubles, which keeps up to half of the GPU's memory unused.
        "arena_extend_strategy": "kSameAsRequested",
    },
}
AMPERE = 80  # the first compute capability, times ten, for which attention is one kernel
GPU_TARGET = "NVIDIA GPUs"  # of engines in the varlen layout
CUDA_HINT = (
    "pip install 'pipework[cuda]', for drivers below 580 'pipework[cuda12]', or hide the GPU: "
    "CUDA_VISIBLE_DEVICES=''"
)
log = logging.getLogger(__name__)


class OnnxRuntime(Runtime):
    """ONNX Runtime: ONNX graphs."""

    format = "onnx"
    converter = "pipework.export.convert.onnx2ort:OnnxConverter"
    model_file = "model.onnx"
    extra = "cpu"
    precisions = (Precision.FP32, Precision.FP16, Precision.INT8)
    layouts = tuple(Layout)
    scalings = (Scaling.DYNAMIC, Scaling.STATIC)
    # The names under which optimum and transformers.js look for a precision.
    hub_files = MappingProxyType(
        {
            Precision.FP32: "onnx/model.onnx",
            Precision.FP16: "onnx/model_fp16.onnx",
            Precision.INT8: "onnx/model_quantized.onnx",
        }
    )
    triton = TritonForm(
        backend="onnxruntime",
        platform="onnxruntime_onnx",
        model_file="model.onnx",
        cuda_options=PROVIDER_OPTIONS[CUDA],
    )

    def examine(self, precision: Precision) -> tuple[Usability, str]:
        """Return where it computes; fp16 is slow on a CPU, and int8 on a GPU."""
        import onnxruntime as ort  # noqa: PLC0415  (optional)

        runtime = self.version()
        if CUDA not in ort.get_available_providers():
            where = f"{runtime} on the CPU"
        else:
            gpu = cuda_gpu()
            missing = [name for name in load_cuda_libraries() if gpu or name != DRIVER]
            if missing:
                message = f"{runtime} does not find {', '.join(missing)}"
                raise MissingDependencyError(message, CUDA_HINT)
            if gpu and precision is Precision.INT8:
                return Usability.SLOW, f"{runtime} on CUDA, where int8 is slower than fp32"
            if gpu:
                return Usability.YES, f"{runtime} on CUDA"
            where = f"{runtime} on the CPU; with a GPU on CUDA"
        if precision is Precision.FP16:
            return Usability.SLOW, f"{where}, which computes fp16 in float32"
        return cpu_usability(precision, where)

    def supports(self, precision: Precision, layout: Layout) -> bool:
        """Return whether there are engines of a precision in a layout; varlen has no int8."""
        varlen_int8 = layout is Layout.VARLEN and precision is Precision.INT8
        return super().supports(precision, layout) and not varlen_int8

    def needs_gpu(self, variant: Variant) -> bool:
        """Return whether an engine computes on a GPU only: in the varlen layout."""
        return variant.layout is Layout.VARLEN

    def version(self) -> str:
        """Return name and version of the runtime."""
        import onnxruntime as ort  # noqa: PLC0415  (optional)

        return f"onnxruntime {ort.__version__}"

    def local_precisions(self) -> tuple[Precision, ...]:
        """Return fp16 only on a GPU, and int8 only on a CPU.

        CUDA computes int8 with twice as many kernels as fp32, and some of its operators on the CPU.
        """
        if find_spec("onnxruntime") is None:
            return ()
        lower = Precision.INT8 if usable_gpu() is None else Precision.FP16
        return (Precision.FP32, lower)

    def open(
        self,
        path: Path,
        variant: Variant,
        collate: Collate,
        built: EngineBuild | None,
        threads: int,
    ) -> CollatedEngine:
        """Open an ONNX graph; it contains its precision."""
        check_installed("onnxruntime", self.extra)
        if built is None or not self.needs_gpu(variant):
            return OnnxRuntimeEngine(path, collate, threads=threads)
        gpu = cuda_gpu()
        if gpu is None:
            message = "onnxruntime computes the varlen layout on an NVIDIA GPU only, with CUDA"
            hint = "pip install 'pipework[cuda]', or use another engine: pipe export RUN --to onnx"
            raise NoGpuError(message, hint)
        fused = variant.precision is Precision.FP16 and gpu.capability >= AMPERE
        graphs = fused and built.first_only
        return OnnxRuntimeEngine(path, collate, threads=threads, graphs=graphs)

    def fits_here(self, built: EngineBuild) -> bool:
        """Return whether there is a GPU if an engine needs one."""
        return built.target != GPU_TARGET or usable_gpu() is not None


class OnnxRuntimeEngine(CollatedEngine):
    """Engine for an ONNX file. Not thread-safe."""

    def __init__(
        self, path: Path, collate: Collate, *, threads: int | None = None, graphs: bool = False
    ) -> None:
        """Load the graph.

        With `graphs`, calls on a GPU have fixed sizes and are captured as CUDA graphs.

        Raises:
            RunFolderError: the file is not a graph, or its inputs and outputs are different.
            MissingDependencyError: there is a GPU, but CUDA fails, or its libraries are missing.
        """
        self._gpu = cuda_gpu()
        provider = CPU if self._gpu is None else CUDA
        if provider == CUDA and (missing := load_cuda_libraries()):
            message = f"there is a GPU, but onnxruntime needs {', '.join(missing)}, not found"
            raise MissingDependencyError(message, CUDA_HINT)
        self._calls: CudaCalls | None = None
        self._thread = LowPriorityThread()
        try:
            if provider == CUDA:
                self._calls = CudaCalls(graph_buckets(collate.longest) if graphs else ())
                collate = replace(collate, buckets=self._calls.buckets)
            self._session = self._thread.call(lambda: self._open(path, threads, provider))
            inputs = {node.name: node for node in self._session.get_inputs()}
            outputs = {node.name for node in self._session.get_outputs()}
            check_names({*inputs}, outputs, collate)
            index = inputs.get("text_index")
            first_only = index is None or index.shape[1] == 1
            super().__init__(replace(collate, first_only=first_only))
        except PipeError:
            self.close()
            raise
        except Exception as error:  # the runtime's errors share no narrower base
            self.close()
            raise _opening_error(path, str(error).splitlines()[0], provider) from error

    def _open(self, path: Path, threads: int | None, provider: str) -> "ort.InferenceSession":
        import onnxruntime as ort  # noqa: PLC0415  (optional)

        buffers = {} if self._calls is None else self._calls.options
        with ALLOCATING if self._calls else nullcontext():
            session = ort.InferenceSession(
                str(path),
                session_options(threads or cpu_limit()),
                providers=[provider],
                provider_options=[PROVIDER_OPTIONS[provider] | buffers],
                enable_fallback=0,  # it would print to stdout, and compute on the CPU
            )
        _check_provider(session.get_providers(), provider)
        return session

    def learn_costs(self, longest: int) -> None:
        """Measure the cost of calls as `CollatedEngine` does; with CUDA graphs, capture calls.

        Raises:
            MissingDependencyError: CUDA fails.
        """
        try:
            super().learn_costs(longest)
        except Exception as error:  # the runtime's errors share no narrower base
            if self._calls is None:
                raise
            message = f"onnxruntime cannot compute on the GPU: {str(error).splitlines()[0]}"
            raise MissingDependencyError(message, HINT) from error

    @property
    def processor(self) -> str:
        """Name of the GPU or CPU."""
        return super().processor if self._gpu is None else self._gpu.name

    @property
    def on_gpu(self) -> bool:
        """Whether CUDA computes."""
        return self._gpu is not None

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        future = self._thread.start(lambda: self._run(arrays))
        return future.result

    def _run(self, arrays: Arrays) -> Logits:
        if self._calls is not None:
            return self._calls.run(self._session, arrays)
        return np.asarray(self._session.run(["logits"], dict(arrays))[0], np.float32)

    def close(self) -> None:
        """Free the graph, its threads and buffers. Closing twice is allowed."""
        self._thread.close()
        if self._calls is None:
            self._session = None
            return
        with ALLOCATING:
            self._calls.release()
            self._session = None
            self._calls.close()


def cuda_gpu() -> Gpu | None:
    """Return the GPU to compute on, or None for the CPU.

    Raises:
        MissingDependencyError: the package supports CUDA, but the GPU cannot be used.
    """
    import onnxruntime as ort  # noqa: PLC0415  (optional)

    if CUDA not in ort.get_available_providers():
        return None
    try:
        gpu = find_gpu()
    except NoGpuError as reason:
        report_cpu(str(reason))
        return None
    check_driver(ort.cuda_version)
    return gpu


def usable_gpu() -> Gpu | None:
    """Return the GPU to compute on; None also if it cannot be used."""
    with suppress(MissingDependencyError):
        return cuda_gpu()
    return None


@cache
def report_cpu(reason: str) -> None:
    """Report once that a package with CUDA computes on the CPU; a warning if this is not wanted."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
    level = logging.INFO if wanted else logging.WARNING
    log.log(level, "onnxruntime supports CUDA, but computes on the CPU: %s", reason)


def _opening_error(path: Path, reason: str, provider: str) -> PipeError:
    """Return the error for a graph that cannot be opened, or for a GPU that cannot be used."""
    if provider == CUDA and "CUDA" in reason.replace(str(path), ""):
        return MissingDependencyError(f"onnxruntime cannot compute on the GPU: {reason}", HINT)
    message = f"{path} is not a usable ONNX graph: {reason}"
    return RunFolderError(message, "export it again: pipe export RUN --to onnx")


def _check_provider(providers: Sequence[str], provider: str) -> None:
    """Check that the runtime uses the requested provider: if CUDA fails, it falls back.

    Raises:
        MissingDependencyError: it fell back to another provider.
    """
    if providers[0] != provider:
        message = f"onnxruntime uses {providers[0]} instead of {provider}: CUDA did not start"
        raise MissingDependencyError(message, CUDA_HINT)


def session_options(threads: int) -> "ort.SessionOptions":
    """Return the options of a session that computes batches of varying lengths."""
    import onnxruntime as ort  # noqa: PLC0415  (optional)

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only; its warnings are about graphs, for exporters
    # Both cache memory per shape, and lengths vary. Without them the throughput is the same, and
    # memory is released after a large batch.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Spinning threads take CPU time from the event loop: on a busy machine they cost a third
    # (6 layers) to a half (2 layers) of the throughput.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
