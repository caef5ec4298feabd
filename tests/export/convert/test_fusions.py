"""Fusions of onnxruntime are counted, and lost fusions are reported."""

import onnx
import pytest

from pipework.export.build import BuildResult
from pipework.export.config import ExportSettings
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.convert.fusions import count_fusions, lost_fusions
from pipework.export.run import export
from pipework.run_folder.engine_record import EngineBuild
from pipework.run_folder.manifest import read_manifest

LAYERS = 2  # of the preset that the sample is trained with


@pytest.fixture
def graph(exported_run):
    (engine,) = read_manifest(exported_run).engines
    return exported_run / engine.files[0].path


def broken(graph, path):
    """Insert an operator into the first activation that breaks its fusion pattern."""
    model = onnx.load(graph)
    erf = next(node for node in model.graph.node if node.op_type == "Erf")
    sign = onnx.helper.make_node("Softsign", [erf.input[0]], ["softsign"])
    erf.input[0] = "softsign"
    model.graph.node.insert([*model.graph.node].index(erf), sign)
    onnx.save(model, path)
    return path


def test_the_activation_of_every_layer_is_fused_and_recorded(exported_run):
    (engine,) = read_manifest(exported_run).engines
    assert engine.built.fusions["BiasGelu"] == LAYERS


def test_an_unknown_subgraph_is_reported_as_a_lost_fusion(graph, tmp_path):
    before, after = count_fusions(graph), count_fusions(broken(graph, tmp_path / "model.onnx"))
    assert lost_fusions(before, after) == [f"BiasGelu {LAYERS} -> {LAYERS - 1}"]
    assert lost_fusions(before, before) == []


def test_counting_leaves_no_temporary_files(graph):
    before = sorted(graph.parent.iterdir())
    count_fusions(graph)
    assert sorted(graph.parent.iterdir()) == before


def test_an_export_reports_fusions_lost_since_the_last_export(proven, noting):
    def builder(_variant, run_rows, folder, *_):
        checkpoint_to_onnx(run_rows.run, run_rows.manifest, folder / "model.onnx")
        return BuildResult(built=EngineBuild(opset=17, built_with={}, fusions={"BiasGelu": 1}))

    export(proven, noting, settings=ExportSettings(speed_s=0, dev_rows=20), builder=builder)
    expected = f"onnx-fp32: fewer fusions than in the last export: BiasGelu {LAYERS} -> 1"
    assert expected in noting.lines
