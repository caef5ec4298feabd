"""Engine for OpenVINO on the CPU.

By default OpenVINO computes in bf16 on processors that support it, so the precision is always set.
For an int8 engine, the model file has the precision of the operations that are not int8.

Shapes: B inputs of one call, C classes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.machine import LowPriorityThread, computes_bf16, cpu_limit, multiplies_groups
from pipework.run_folder.engine_record import EngineBuild, Precision, Scaling, Variant
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits, check_names
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.runtime import Runtime, Usability, check_installed, cpu_usability

if TYPE_CHECKING:
    import openvino as ov

# Each new shape is compiled and cached. With rows of any width, an int8 engine of 6 layers of
# width 384 used 730 MiB after 40 s of random batches and kept growing. With multiples of 16 it uses
# 248 MiB and is 1.1 times as fast (8: 276 MiB, 1.06; 32: 231 MiB, 0.96).
ROW_STEP = 16

HINT = "INFERENCE_PRECISION_HINT"  # a property of OpenVINO
PRECISION_PATH = ["runtime_options", HINT]  # where a model file stores its precision

# Inputs of a grouped int8 layer that share a scale, and where a model file stores the number.
# MiniLM on SST-2, packed, on an EPYC with VNNI, weights rounded to the nearest: rms of the logits
# 0.011 with 64, 0.013 with 128, 0.019 with a scale per token; 128 is 1.1 times as fast as 64.
GROUP = 128
GROUP_PATH = ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]


class OpenVino(Runtime):
    """OpenVINO: models of a .xml and a .bin file, on the CPU."""

    format = "openvino"
    converter = "pipework.export.convert.onnx2openvino:OpenVinoConverter"
    model_file = "model.xml"
    extra = "cpu"
    precisions = (Precision.FP32, Precision.BF16, Precision.INT8)
    scalings = (Scaling.STATIC, Scaling.GROUPED)
    # The names under which optimum-intel looks for a precision.
    hub_files = MappingProxyType(
        {
            Precision.FP32: "openvino/openvino_model.xml",
            Precision.INT8: "openvino/openvino_model_qint8_quantized.xml",
        }
    )

    def examine(self, precision: Precision) -> tuple[Usability, str]:
        """Return the version; bf16 needs instructions of the processor."""
        if precision is Precision.BF16 and not has_bf16():
            message = "the processor has no bf16 instructions (avx512_bf16 or amx_bf16)"
            raise MissingDependencyError(message, "use int8, or a processor with them")
        return cpu_usability(precision, f"{self.version()} on the CPU")

    def version(self) -> str:
        """Return name and version of the runtime, without its build number."""
        import openvino as ov  # noqa: PLC0415  (optional)

        return f"openvino {ov.__version__.partition('-')[0]}"

    def local_precisions(self) -> tuple[Precision, ...]:
        """Return all precisions, or all but bf16."""
        if find_spec("openvino") is None:
            return ()
        return self.precisions if computes_bf16() else (Precision.FP32, Precision.INT8)

    def local_scalings(self) -> tuple[Scaling, ...]:
        """Return static, and grouped where the runtime multiplies groups in int8.

        On other processors it may compute them in float32 or bf16.
        """
        return self.scalings if multiplies_groups() else (Scaling.STATIC,)

    def open(
        self,
        path: Path,
        variant: Variant,
        collate: Collate,
        built: EngineBuild | None,
        threads: int,
    ) -> CollatedEngine:
        """Open a model in the precision of the engine."""
        del built
        check_installed("openvino", self.extra)
        return OpenVinoEngine(path, collate, precision=variant.precision, threads=threads)


class OpenVinoEngine(CollatedEngine):
    """Engine for an OpenVINO model: a .xml file with a .bin file in the same folder."""

    def __init__(
        self, path: Path, collate: Collate, *, precision: Precision, threads: int | None = None
    ) -> None:
        """Read and compile the model.

        Raises:
            MissingDependencyError: the engine is bf16, which the processor does not support.
            RunFolderError: the file is not a model, or its inputs and outputs are different.
        """
        import openvino as ov  # noqa: PLC0415  (optional)

        core = shared_core()
        if precision is Precision.BF16:
            _check_bf16(path, core)
        try:
            model = core.read_model(path)
            inputs = {node.get_any_name(): node for node in model.inputs}
            check_names({*inputs}, {node.get_any_name() for node in model.outputs}, collate)
            index = inputs.get("text_index")
            first_only = index is None or index.get_partial_shape()[1] == ov.Dimension(1)
            hint = precision_hint(model, precision)
            options = _options(hint, threads or cpu_limit())
            with LowPriorityThread() as thread:  # the computing threads inherit its priority
                self._model = thread.call(lambda: core.compile_model(model, "CPU", options))
            self._request = self._model.create_infer_request()
            collate = replace(collate, first_only=first_only, row_step=ROW_STEP)
            self._indices = {node.get_any_name(): n for n, node in enumerate(self._model.inputs)}
            super().__init__(collate)
        except Exception as error:  # the runtime's errors share no narrower base
            self.close()
            message = f"{path} is not a usable OpenVINO model: {_reason(error)}"
            hint = "export it again: pipe export RUN --to openvino"
            raise RunFolderError(message, hint) from error

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        for name, array in arrays.items():  # faster than the convenience method of the library
            tensor = self._request.get_input_tensor(self._indices[name])
            tensor.shape = array.shape
            tensor.data[:] = array
        self._request.start_async()
        return self._finish

    def _finish(self) -> Logits:
        self._request.wait()
        return np.array(self._request.get_tensor("logits").data, np.float32)

    def close(self) -> None:
        """Free the model and its threads. Closing twice is allowed."""
        self._request = None
        self._model = None


@cache
def shared_core() -> "ov.Core":
    """Return the runtime of the process, which is never freed. Use no other.

    A runtime that has compiled a model replaces the signal stack (sigaltstack) of its thread. If it
    is freed in another thread, or while a second one exists, the thread keeps the address of freed
    memory, and the next signal kills the process with SIGSEGV (OpenVINO 2026.4).
    """
    import openvino as ov  # noqa: PLC0415  (optional)

    return ov.Core()


def _check_bf16(path: Path, core: "ov.Core") -> None:
    """Check that the processor computes in bf16.

    The precision is only a hint: a processor without bf16 would compute logits that differ from
    the rows of the parity check.
    """
    if not has_bf16():
        supported = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        message = f"{path} needs bf16, but this processor supports {', '.join(supported)}"
        hint = "use another engine, or export one: pipe export RUN --to openvino --precision int8"
        raise MissingDependencyError(message, hint)


def has_bf16() -> bool:
    """Return whether this processor multiplies in bf16; the runtime emulates it slowly if not."""
    return "BF16" in shared_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def precision_hint(model: "ov.Model", precision: Precision) -> str:
    """Return the precision of all operations that are not int8: f32 or bf16.

    An int8 model without a stored precision uses float32. A model that stores bf16 uses float32 on
    processors without bf16; this is more exact, and the server checks parity there again.
    """
    bf16 = precision is Precision.BF16
    if precision is Precision.INT8 and model.has_rt_info(PRECISION_PATH):
        bf16 = model.get_rt_info(PRECISION_PATH).value == "bf16" and has_bf16()
    return "bf16" if bf16 else "f32"


def _options(hint: str, threads: int) -> dict[str, str | int]:
    # CPU_RUNTIME_CACHE_CAPACITY keeps its default: 100 saves 60 MB but halves the speed, and 0 is
    # even slower.
    return {
        HINT: hint,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # With pinning, two models of one thread each would share one CPU.
        "ENABLE_CPU_PINNING": False,
    }


def _reason(error: Exception) -> str:
    """Return the runtime's error message without the locations in its source code."""
    lines = [line.strip() for line in str(error).splitlines()]
    skipped = ("Exception from", "Check '")
    return ([line for line in lines if line and not line.startswith(skipped)] or lines)[0]
