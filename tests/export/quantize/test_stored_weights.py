from functools import partial

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipework.errors import CheckFailedError
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.quantize.stored_weights import check_stored_weights
from pipework.export.rows.run_rows import RunRows
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest

FORMS = [
    (Precision.INT8, Scaling.DYNAMIC),
    (Precision.INT8, Scaling.STATIC),
    (Precision.FP16, None),
]


@pytest.fixture(scope="module")
def graphs(trained_run, tmp_path_factory):
    """The float32 graph of a run and its converted graphs, by precision and scaling."""
    folder = tmp_path_factory.mktemp("graphs")
    manifest = read_manifest(trained_run)
    checkpoint_to_onnx(trained_run, manifest, folder / "fp32.onnx")
    settings = ExportSettings(dev_rows=20, calibration_rows=20)
    rows = RunRows.open(trained_run, manifest, settings)
    converted = {}
    for precision, scaling in FORMS:
        variant = Variant(format="onnx", precision=precision, layout=Layout.PADDED, scaling=scaling)
        own = folder / variant.label
        own.mkdir()
        build(variant, rows, own, lambda _: None, NullProgress())
        converted[precision, scaling] = own / "model.onnx"
    return folder / "fp32.onnx", converted


def weakest(array):
    """The place of the largest value."""
    return np.unravel_index(np.abs(array.astype(np.float64)).argmax(), array.shape)


def flip(array):
    array[weakest(array)] *= -1


def triple(array):
    array[weakest(array)[0]] = array[weakest(array)[0]] // -3


def double(array):
    array[weakest(array)] *= 2


def change(path, out, ending, fault):
    """Write a graph with a fault in the first large constant whose name has this ending."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if tensor.name.endswith(ending) and array.ndim:
            fault(array)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            onnx.save(model, out)
            return
    pytest.fail(f"no constant {ending}")


def remove(path, out, ending):
    model = onnx.load(path)
    kept = [tensor for tensor in model.graph.initializer if not tensor.name.endswith(ending)]
    assert len(kept) < len(model.graph.initializer)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, out)


@pytest.mark.parametrize("form", FORMS)
def test_correct_weights_pass(graphs, form):
    plain, converted = graphs
    check_stored_weights(plain, converted[form], "engine")


@pytest.mark.parametrize(
    ("form", "fault", "message"),
    [
        (FORMS[0], partial(change, ending="weight:int8", fault=flip), "by 25[0-9] steps"),
        (FORMS[0], partial(change, ending=":int8", fault=triple), "steps"),
        (FORMS[1], partial(change, ending=":columns", fault=double), "steps"),
        (FORMS[1], partial(change, ending=":scales", fault=double), "steps"),
        (FORMS[1], partial(remove, ending=":columns"), "has no scale"),
        (FORMS[0], partial(change, ending=".bias", fault=flip), "differs from the checkpoint"),
        (FORMS[2], partial(change, ending=":fp16", fault=flip), "differs from the checkpoint"),
        (FORMS[2], partial(remove, ending=":fp16"), "is missing"),
    ],
)
def test_a_wrong_weight_is_refused(graphs, tmp_path, form, fault, message):
    plain, converted = graphs
    fault(converted[form], tmp_path / "wrong.onnx")
    with pytest.raises(CheckFailedError, match=message):
        check_stored_weights(plain, tmp_path / "wrong.onnx", "engine")


def test_a_faulty_conversion_is_refused_by_the_build(trained_run, tmp_path, monkeypatch):
    manifest = read_manifest(trained_run)
    rows = RunRows.open(trained_run, manifest, ExportSettings(dev_rows=20))
    variant = Variant(
        format="onnx", precision=Precision.INT8, layout=Layout.PADDED, scaling=Scaling.DYNAMIC
    )
    monkeypatch.setattr("pipework.export.quantize.qdq_graph.TINY", np.float32(1e3))
    with pytest.raises(CheckFailedError, match="onnx-int8-dynamic: the stored weight"):
        build(variant, rows, tmp_path, lambda _: None, NullProgress())
