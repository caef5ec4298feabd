"""Imports of ONNX graphs that the exporters of PyTorch wrote, without the weights of PyTorch."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from pipework.benchmarks.studies.imports import GRAPH_INPUTS, LABELS, save_classifier, save_graph
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.errors import ConfigError
from pipework.export.config import ImportSettings
from pipework.export.importing.onnx_source import OnnxSource
from pipework.export.importing.run import import_source
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import SourceKind
from tests.export.importing.conftest import edit_json
from tests.export.importing.test_run import SPEED, imported
from tests.export.importing.test_run import onnx as variant
from tests.repetitions import repeated


def with_random_weights(folder):
    """Change every weight, because the exporters store equal tensors once."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(torch.randn_like(values) * 0.05)
    model.save_pretrained(folder)
    return folder


def check_weights(folder, model):
    """Check that the weights that are read from the graph give the logits of the model."""
    loaded, _ = OnnxSource.of(str(folder)).load(model.config)
    ids = torch.arange(5, 35)[None]
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", repeated(EncoderFamily, quick=3))
def test_the_weights_of_every_family_are_found(family, tmp_path):
    folder = with_random_weights(save_classifier(tmp_path, family))
    check_weights(folder, save_graph(folder))


def test_equal_tensors_are_found(tmp_path):
    check_weights(tmp_path, save_graph(save_classifier(tmp_path), inputs=GRAPH_INPUTS))


@pytest.mark.thorough
@pytest.mark.parametrize("random", [True, False])
def test_the_newer_exporter_is_supported(random, tmp_path):
    folder = save_classifier(tmp_path, EncoderFamily.DISTILBERT)
    if random:
        with_random_weights(folder)
    check_weights(folder, save_graph(folder, dynamo=True))


@pytest.fixture(scope="module")
def graph_folder(tmp_path_factory):
    folder = save_classifier(tmp_path_factory.mktemp("graph") / "bert")
    save_graph(folder, inputs=GRAPH_INPUTS)
    return folder


def test_the_import_is_proven_against_the_graph(graph_folder, tmp_path):
    manifest = imported(graph_folder, tmp_path / "run")
    assert manifest.imported.kind is SourceKind.ONNX
    assert manifest.imported.program.startswith("onnxruntime ")
    assert manifest.imported.max_abs < 1e-5
    assert manifest.task.labels == LABELS
    assert manifest.input.type_ids
    (record,) = export(tmp_path / "run", NullProgress(), [variant(Layout.PACKED)], settings=SPEED)
    assert record.proven


def test_a_graph_without_type_ids_reads_pairs(tmp_path):
    folder = save_classifier(tmp_path / "source")
    save_graph(folder)
    manifest = imported(folder, tmp_path / "run", pair=True)
    assert not manifest.input.type_ids
    assert manifest.imported.max_abs < 1e-5


class Rows(CalibrationDataReader):
    """Two inputs of the calibration of a static graph."""

    def __init__(self):
        ids = np.arange(5, 35)[None]
        row = dict(zip(GRAPH_INPUTS, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))
        self._rows = iter([row, {**row, "input_ids": ids[:, ::-1].copy()}])

    def get_next(self):
        return next(self._rows, None)


def half(path):
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=False), path)


def dynamic(path):
    quantize_dynamic(path, path, weight_type=QuantType.QUInt8)  # has zero points


def static(path):
    options = {"quant_format": QuantFormat.QDQ, "per_channel": True}
    options["op_types_to_quantize"] = ["MatMul", "Gemm", "Gather"]
    quantize_static(path, path, Rows(), weight_type=QuantType.QInt8, **options)


@pytest.mark.parametrize(
    ("lower", "precision", "steps"),
    [(half, "fp16", 2048), (dynamic, "int8", 255), (static, "int8", 254)],
)
def test_a_graph_of_lower_precision_is_proven_against_itself(lower, precision, steps, tmp_path):
    source = with_random_weights(save_classifier(tmp_path / "source"))
    model = save_graph(source, inputs=GRAPH_INPUTS)
    lower(source / "model.onnx")
    run = tmp_path / "run"
    findings = imported(source, run).data.findings
    assert any(f"computes in {precision}" in finding for finding in findings)
    weights, found = model.state_dict(), load_file(run / "checkpoint/model.safetensors")
    for name, values in found.items():
        largest = float(weights[name].abs().max())
        torch.testing.assert_close(values, weights[name], atol=largest / steps * 1.01, rtol=0)


def test_linked_files_of_external_data_are_read(tmp_path):
    source = save_classifier(tmp_path / "source")
    save_graph(source, inputs=GRAPH_INPUTS)
    blobs, path = tmp_path / "blobs", source / "model.onnx"
    blobs.mkdir()
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data")
    for number, name in enumerate(("model.onnx", "model.onnx_data")):  # as the hub's cache does
        (source / name).rename(blobs / str(number))
        (source / name).symlink_to(Path("../blobs") / str(number))
    assert imported(source, tmp_path / "run").imported.max_abs < 1e-5


def edit_graph(folder, change):
    graph = onnx.load(folder / "model.onnx")
    change(graph.graph)
    onnx.save(graph, folder / "model.onnx")


def four_bits(folder, form=QuantFormat.QOperator):
    quantizer = MatMulNBitsQuantizer(onnx.load(folder / "model.onnx"), quant_format=form)
    quantizer.process()
    quantizer.model.save_model_to_file(str(folder / "model.onnx"))


def anonymous(folder):
    def change(graph):
        for node in graph.node:
            node.name = ""

    edit_graph(folder, change)


def other_input(folder):
    def change(graph):
        graph.input.append(onnx.helper.make_tensor_value_info("position_ids", 7, ["n", "t"]))

    edit_graph(folder, change)


def truncated(folder):
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:5000])


def more_labels(folder):
    names = dict(enumerate("abcd"))
    edit_json(folder / "config.json", id2label=names, label2id={v: k for k, v in names.items()})


FAULTS = [
    (four_bits, "has quantised layers that cannot be read (MatMulNBits)"),
    (partial(four_bits, form=QuantFormat.QDQ), "weights not found, such as bert.encoder.layer.0."),
    (anonymous, "12 weights not found, such as bert.encoder.layer.0.attention.output."),
    (other_input, "token_type_ids, found input_ids tensor(int64), attention_mask tensor(int64)"),
    (truncated, "model.onnx: onnxruntime cannot open it: "),
    (more_labels, "id2label in config.json has 4 labels, but classifier.bias has 3 rows"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_fault_of_a_graph_is_named(fault, message, graph_folder, tmp_path):
    folder = tmp_path / "source"
    shutil.copytree(graph_folder, folder)
    fault(folder)
    with pytest.raises(ConfigError) as caught:
        import_source(str(folder), tmp_path / "run", [], ImportSettings(), NullProgress())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_graph_of_a_fixed_length_is_refused(tmp_path):
    folder = save_classifier(tmp_path / "source", EncoderFamily.DISTILBERT)
    save_graph(folder, fixed=True)
    with pytest.raises(ConfigError, match=r"input_ids has the fixed shape \[2, 9\]"):
        imported(folder, tmp_path / "run")
