"""What onnxruntime fuses is counted, and a fusion that is lost is told."""

import onnx
import pytest

from pipework.export.build import Built
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.convert.fusions import count_fusions, lost_fusions
from pipework.export.run import export
from pipework.run_folder.manifest import read_manifest

LAYERS = 2  # of the preset that the sample is trained with


@pytest.fixture
def graph(exported_run):
    (engine,) = read_manifest(exported_run).engines
    return exported_run / engine.files[0].path


def broken(graph, path):
    """Put an operator into the first activation that no rule looks for there."""
    model = onnx.load(graph)
    erf = next(node for node in model.graph.node if node.op_type == "Erf")
    sign = onnx.helper.make_node("Softsign", [erf.input[0]], ["softsign"])
    erf.input[0] = "softsign"
    model.graph.node.insert([*model.graph.node].index(erf), sign)
    onnx.save(model, path)
    return path


def test_the_activation_of_every_layer_is_fused_and_recorded(exported_run):
    (engine,) = read_manifest(exported_run).engines
    assert engine.fusions["BiasGelu"] == LAYERS


def test_a_graph_that_a_rule_does_not_know_is_fused_less_often(graph, tmp_path):
    before, after = count_fusions(graph), count_fusions(broken(graph, tmp_path / "model.onnx"))
    assert lost_fusions(before, after) == [f"BiasGelu {LAYERS} -> {LAYERS - 1}"]
    assert lost_fusions(before, before) == []


def test_counting_leaves_nothing_beside_the_graph(graph):
    before = sorted(graph.parent.iterdir())
    count_fusions(graph)
    assert sorted(graph.parent.iterdir()) == before


def test_an_export_tells_what_is_fused_less_often_than_in_the_engine_before(proven, noting):
    def building(_variant, subject, folder, _progress):
        checkpoint_to_onnx(subject.run, subject.manifest, folder / "model.onnx")
        return Built(built_with={}, fusions={"BiasGelu": 1})

    export(proven, noting, building=building)
    said = f"onnx-fp32: fused less often than last time: BiasGelu {LAYERS} -> 1"
    assert said in noting.lines
