"""Builds and runs engines with `checked_tensorrt`; see `PaperGpu.call`."""

import re
import sys
from contextlib import ExitStack
from importlib import import_module
from inspect import signature
from pathlib import Path

import onnx
import pytest

from pipework.errors import ConfigError
from pipework.export.config import ExportSettings
from pipework.export.convert import onnx2tensorrt
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.convert.converter import ConvertedGraph
from pipework.export.convert.onnx2tensorrt import TensorRtConverter, timings_name
from pipework.export.rows.run_rows import RunRows
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineBuild, Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import cuda, tensorrt_packages
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.tensorrt import TensorRtEngine
from pipework.text.padding import Padding
from pipework.train.data.disk_cache import cache_folder, ensure_folder
from tests.paper_gpu.device import HERE

VARIANT = Variant(format="tensorrt", precision=Precision.FP32, layout=Layout.PADDED)
COLLATE = Collate(layout=Layout.PADDED, padding=Padding(pad_id=0, type_ids=True), spans=False)


def use(bindings):
    """Import the bindings in a folder; return the module that checks calls with them."""
    sys.path[:0] = [bindings, str(HERE / "bindings")]
    module = import_module("tests.paper_gpu.checked_tensorrt")
    pytest.MonkeyPatch().setattr(cuda, "_runtime", lambda: module.CUDA)
    return module


def rows_of(run):
    return RunRows.open(Path(run), read_manifest(Path(run)), ExportSettings(dev_rows=64))


def built_and_run(bindings, run, folder):
    """Build engines of a run in a folder, and run the last on the texts of dev."""
    checked = use(bindings)
    rows, graph = rows_of(run), Path(folder) / "graph.onnx"
    checkpoint_to_onnx(rows.run, rows.manifest, graph)
    version = tensorrt_packages.load("tensorrt").__version__
    file = ensure_folder(cache_folder() / "tensorrt") / timings_name(version, cuda.find_gpu())
    timings = {}
    for content in ("", "usable", "damaged", "of another GPU"):
        file.write_text(content)
        built = converted(graph, rows)
        timings[content] = file.read_text()
    checked.RELEASED.clear()
    with TensorRtEngine(graph.with_name("model.engine"), COLLATE, built) as engine:
        logits_NC = engine.infer([row.encoding for row in rows.dev]).values
    del engine
    return {
        "logits": logits_NC.tolist(),
        "built": built.model_dump(mode="json"),
        "timings": timings,
        "released": [*checked.RELEASED],
        "unreadable": refusal(graph, rows),
        "used": sorted(checked.USED),
        "members": sorted(members(checked)),
    }


def converted(graph, rows):
    build = EngineBuild(opset=17, built_with={})
    source = ConvertedGraph(path=graph, variant=VARIANT, precision=Precision.FP32, build=build)
    return TensorRtConverter().convert(
        source, graph.with_name("model.engine"), rows, NullProgress()
    )


def members(checked):
    """Return all members of the classes of the bindings that were used."""
    classes = {name.partition(".")[0] for name in checked.USED}
    return {name for one in classes for name in vars(getattr(checked.trt, one))}


def refusal(graph, rows):
    """Return the error for the graph with an operator that TensorRT cannot read."""
    model = onnx.load(graph)
    model.graph.node[-1].domain = "unknown"
    onnx.save(model, graph.with_name("unreadable.onnx"))
    try:
        converted(graph.with_name("unreadable.onnx"), rows)
    except ConfigError as error:
        return str(error)


def overrides(bindings):
    """Return the parameters of methods that TensorRT calls: ours, and those of the bindings."""
    use(bindings)
    trt = tensorrt_packages.load("tensorrt")
    ours = (
        tensorrt_packages.collecting(trt),
        onnx2tensorrt._monitor(trt, NullProgress(), ExitStack()),  # noqa: SLF001
    )
    return {
        name: (len(signature(function).parameters), documented(getattr(type(one).__base__, name)))
        for one in ours
        for name, function in vars(type(one)).items()
        if not name.startswith("_") and hasattr(type(one).__base__, name)
    }


def documented(function):
    """Return the number of parameters of a function of the bindings."""
    return len(re.findall(r"\w+(?=: )", function.__doc__.strip().splitlines()[0]))
