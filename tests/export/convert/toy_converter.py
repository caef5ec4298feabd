"""The building half of a toy runtime: keeps the graph under another name."""

from pipework.export.convert.converter import Converter
from tests.serve.engines.toy_engine import ToyRuntime


class ToyConverter(Converter):
    """Renames the graph."""

    runtime = ToyRuntime()

    def convert(self, graph, out, run_rows, progress):
        del run_rows, progress
        graph.path.rename(out)
        return graph.build
