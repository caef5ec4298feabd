"""Engines of a run with n-gram embeddings answer as its checkpoint does, and read them."""

import shutil

import onnx
import pytest
from onnx import numpy_helper

from pipework.errors import CheckFailedError
from pipework.export.build import build
from pipework.export.config import ExportSettings
from pipework.export.plan import asked
from pipework.export.run import export
from pipework.progress import Silent
from pipework.run_folder.engine_record import Layout, Precision, Target
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.model import Head
from pipework.train.config.run_config import load_config
from pipework.train.run import train

QUICK = ExportSettings(speed_s=0.1, dev_rows=40)
BUCKETS = 5000


def trained(folder, head, epochs):
    """Return a run on the sample, whose texts have English and Chinese pairs and triples."""
    given = [f"model.ngrams={BUCKETS}", f"model.head={head}", f"train.epochs={epochs}"]
    given += ["train.batch_size=16", "train.precision=fp32", "train.report=false"]
    train(load_config("sample", given), folder / "run", Silent())
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # After 4 epochs its scores lie so close that int8 changes 4 labels of 107 on some processors.
    return trained(tmp_path_factory.mktemp("ngrams"), Head.LINEAR, epochs=8)


def built_engines(run, engines):
    """Build engines in both layouts and return their records, and how many were asked for."""
    manifest = read_manifest(run)
    wanted = [
        one for kind in engines for layout in Layout for one in asked(manifest, *kind, layout)
    ]
    export(run, Silent(), wanted, settings=QUICK)
    found = read_manifest(run).engines
    assert all(one.parity is not None and one.parity.passed for one in found)
    exact = [one for one in found if one.precision is Precision.FP32]
    assert all(one.parity.max_abs < 1e-4 for one in exact)
    return found, len(wanted)


@pytest.mark.parametrize(
    ("to", "precision", "count"),
    [
        (Target.ONNX, Precision.INT8, 4),  # of two kinds
        (Target.OPENVINO, Precision.FP32, 2),
        pytest.param(Target.ONNX, Precision.FP32, 2, marks=pytest.mark.slow),
        pytest.param(Target.OPENVINO, Precision.INT8, 2, marks=pytest.mark.slow),
    ],
)
def test_an_engine_is_proven_in_both_layouts(run, tmp_path, to, precision, count):
    found, wanted = built_engines(shutil.copytree(run, tmp_path / "run"), [(to, precision)])
    assert len(found) == wanted == count


def test_with_a_head_that_reads_all_tokens_too(tmp_path):
    exact = [(Target.ONNX, Precision.FP32)]
    found, wanted = built_engines(trained(tmp_path, Head.CNN, epochs=1), exact)
    assert len(found) == wanted == 2


def test_an_engine_without_the_table_is_refused(run):
    """The proof sees whether the n-grams are read: without them the answers are others."""

    def forgetful(variant, subject, folder, progress):
        built = build(variant, subject, folder, progress)
        path = folder / "model.onnx"
        model = onnx.load(path)
        (table,) = (one for one in model.graph.initializer if one.dims[:1] == [BUCKETS])
        empty = numpy_helper.from_array(numpy_helper.to_array(table) * 0, table.name)
        table.CopyFrom(empty)
        onnx.save(model, path)
        return built

    with pytest.raises(CheckFailedError):
        export(run, Silent(), settings=QUICK, building=forgetful)
