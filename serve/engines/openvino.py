"""Answers with OpenVINO on the CPU.

OpenVINO computes in bf16 by itself where the processor has it, so the precision is always set. Of
an int8 engine the model says what was proven beside int8.

Shapes: B inputs of one call, C classes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits, check_names
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cpu_threads import Behind, cpu_limit

# Each new shape is compiled, and what was compiled is kept. With rows of any width an int8 engine
# of 6 layers of width 384 needed 730 MiB after 40 s of random batches and grew on. With multiples
# of 8 it needs 276 MiB, of 16 248 and of 32 231; it answers 1.06, 1.1 and 0.96 times as much.
# (Measured with calls of 512 tokens at most; larger ones need more.)
ROW_STEP = 16

HINT = "INFERENCE_PRECISION_HINT"
SAID_AT = ["runtime_options", HINT]  # where a model says what it was proven with


class OpenVinoEngine(CollatedEngine):
    """An Engine over an OpenVINO model, a .xml file with its .bin beside it."""

    def __init__(
        self, path: Path, collate: Collate, *, precision: Precision, threads: int | None = None
    ) -> None:
        """Read and compile the model.

        Args:
            path: the .xml file.
            collate: how inputs become the arrays of the graph.
            precision: of the engine, see `precision_hint`.
            threads: threads of the runtime; None for as many as the container may use.

        Raises:
            MissingDependencyError: it is bf16, and the processor does not compute in that.
            RunFolderError: the file is not a model, or its inputs and outputs are not the above.
        """
        core = _core()
        if precision is Precision.BF16:
            _check_bf16(path, core)
        try:
            model = core.read_model(path)
            inputs = {one.get_any_name(): one for one in model.inputs}
            check_names({*inputs}, {one.get_any_name() for one in model.outputs}, collate)
            index = inputs.get("text_index")
            first_only = index is None or index.get_partial_shape()[1] == ov.Dimension(1)
            hint = precision_hint(model, precision)
            options = _options(hint, threads or cpu_limit())
            with Behind() as behind:  # where the threads begin that compute
                self._model = behind.call(lambda: core.compile_model(model, "CPU", options))
            self._request = self._model.create_infer_request()
            taking = replace(collate.reading(first_only=first_only), row_step=ROW_STEP)
            self._places = {one.get_any_name(): n for n, one in enumerate(self._model.inputs)}
            super().__init__(taking)
        except Exception as error:  # the runtime's errors share no narrower base
            self.close()
            message = f"{path} is not a model to serve: {_said(error)}"
            hint = "make it again: pipe export RUN --to openvino"
            raise RunFolderError(message, hint) from error

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        for name, array in arrays.items():  # the library's own way takes longer
            tensor = self._request.get_input_tensor(self._places[name])
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
def _core() -> ov.Core:
    """Return the runtime of the process, which is never given up.

    When its last part ends in another thread than it began in, the memory that the first thread
    handles signals on is gone (sigaltstack), and the next signal kills the process.
    """
    return ov.Core()


def _check_bf16(path: Path, core: ov.Core) -> None:
    """Check that bf16 is computed as bf16.

    The precision is a hint, which a processor without bf16 cannot follow: other answers would come
    out than those that were proven.
    """
    if not has_bf16():
        found = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        message = f"{path} computes in bf16, and this processor does not: {', '.join(found)}"
        hint = "take another engine, or make one: pipe export RUN --to openvino --precision int8"
        raise MissingDependencyError(message, hint)


def has_bf16() -> bool:
    """Return whether the runtime multiplies in bf16 here; elsewhere it would feign it, slowly."""
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def precision_hint(model: ov.Model, precision: Precision) -> str:
    """Return what a model is computed in where its graph does not say int8: f32 or bf16.

    An int8 model that says nothing was proven with float32. One that says bf16 is computed with
    float32, which is more exact, where the processor has no bf16; the server proves it again there.
    """
    said = precision is Precision.BF16
    if precision is Precision.INT8 and model.has_rt_info(SAID_AT):
        said = model.get_rt_info(SAID_AT).value == "bf16" and has_bf16()
    return "bf16" if said else "f32"


def _options(hint: str, threads: int) -> dict[str, str | int]:
    # CPU_RUNTIME_CACHE_CAPACITY is left alone: at 100 it saves 60 MB and costs half of the speed,
    # at 0 nearly all of it.
    return {
        HINT: hint,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Two models of one thread each would be pinned to one and the same processor.
        "ENABLE_CPU_PINNING": False,
    }


def _said(error: Exception) -> str:
    """Return what the runtime says, without the places in its sources that it says it at."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    return (told or lines)[0]
