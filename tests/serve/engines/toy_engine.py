"""The serving half of a toy runtime: the reference evaluator of onnx, in NumPy."""

from pathlib import Path

from onnx.reference import ReferenceEvaluator

from pipework.run_folder.engine_record import Layout, Precision
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.runtime import Runtime, Usability


class ToyRuntime(Runtime):
    """Opens graphs with another file name."""

    format = "toy"
    converter = "tests.export.convert.toy_converter:ToyConverter"
    model_file = "model.toy"
    extra = "cpu"
    precisions = (Precision.FP32,)
    layouts = (Layout.PADDED,)

    def examine(self, precision):
        del precision
        return Usability.SLOW, "toy in NumPy"

    def local_precisions(self):
        return self.precisions

    def open(self, path, variant, collate, built, threads):
        del variant, built, threads
        return ToyEngine(path, collate)


class ToyEngine(CollatedEngine):
    """Evaluates a graph."""

    def __init__(self, path: Path, collate) -> None:
        self._model = ReferenceEvaluator(str(path))
        super().__init__(collate)

    def _start(self, arrays):
        (logits,) = self._model.run(["logits"], dict(arrays))
        return lambda: logits

    def close(self) -> None:
        self._model = None
