"""The building half of a runtime: each has a module with a subclass of `Converter`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipework.export.convert.intermediates import Intermediates, OnnxIntermediates
from pipework.export.convert.structure import Structure, onnx_structure
from pipework.export.rows.run_rows import RunRows
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineBuild, Precision, Variant
from pipework.serve.engines.runtime import Runtime

GRAPH = "graph.onnx"  # name of the graph in the folder of an engine


@dataclass(frozen=True, kw_only=True)
class ConvertedGraph:
    """The ONNX graph of an engine, with its precision.

    Attributes:
        path: the file.
        variant: the variant of the engine.
        precision: precision of all operations that are not int8.
        build: the fields of the build record that do not depend on the runtime.
    """

    path: Path
    variant: Variant
    precision: Precision
    build: EngineBuild


class Converter(ABC):
    """Converts ONNX graphs to engines of a runtime.

    Attributes:
        runtime: the other half.
        runs_graphs: whether the runtime computes graphs before the engine is built: the float32
            graph in its check, and the candidates of int8. Otherwise onnxruntime does.
        unsigned: whether int8 activations are unsigned.
        int8_embeddings: whether the runtime supports int8 tables of embeddings.
    """

    runtime: ClassVar[Runtime]
    runs_graphs: ClassVar[bool] = False
    unsigned: ClassVar[bool] = False
    int8_embeddings: ClassVar[bool] = True

    @abstractmethod
    def convert(
        self, graph: ConvertedGraph, out: Path, run_rows: RunRows, progress: Progress
    ) -> EngineBuild:
        """Write an engine and return its build record.

        A graph that stays next to `out` is checked in place of an engine that cannot run here, and
        deleted afterwards.

        Args:
            graph: the graph.
            out: path of the engine's main file, in the folder of the graph.
            run_rows: the run and its rows.
            progress: receives the stages.

        Raises:
            ConfigError: the runtime cannot read the graph.
            MissingDependencyError: a package that the build needs is not installed.
        """

    def write_graph(self, graph: Path, folder: Path, precision: Precision) -> Path:
        """Return the file with which the runtime computes a graph, if it `runs_graphs`.

        Args:
            graph: the ONNX graph.
            folder: folder for a new file.
            precision: precision of all operations that are not int8.
        """
        del folder, precision
        return graph

    def structure(self, graph: Path) -> Structure:
        """Return the structure of a file of `write_graph`."""
        return onnx_structure(graph)

    def fallback_precision(self) -> Precision:
        """Return the preferred precision of the layers of an int8 engine that are not int8."""
        return Precision.FP32

    def intermediates(self, folder: Path, precision: Precision) -> Intermediates:
        """Open the engine in a folder, or its graph, with its intermediate tensors.

        Raises:
            FileNotFoundError: the folder has no such file.
        """
        del precision
        graphs = sorted(folder.glob("*.onnx"))
        if not graphs:
            raise FileNotFoundError(folder / "*.onnx")
        return OnnxIntermediates(graphs[0])
