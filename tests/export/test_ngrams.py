"""Engines of a run with n-gram embeddings match its checkpoint and use the embeddings."""

import shutil

import numpy as np
import pytest

from pipework.benchmarks.studies.planted_faults import FaultyExporter
from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings
from pipework.export.plan import select_variants
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.model import Head
from pipework.train.config.run_config import load_config
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.ngram_embeddings import NgramTable
from pipework.train.run import train
from tests.export.conftest import weight_changed

QUICK = ExportSettings(speed_s=0, dev_rows=40)
BUCKETS = 5000


def trained(folder, head, epochs):
    """Return a run on the sample, whose texts have English and Chinese pairs and triples."""
    overrides = [f"model.ngrams={BUCKETS}", f"model.head={head}", f"train.epochs={epochs}"]
    overrides += ["train.learning_rate=2e-3", "train.precision=fp32", "train.report=false"]
    train(load_config("sample", overrides), folder / "run", NullProgress())
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # After 4 epochs the scores are too close: int8 changes 4 of 107 labels on some processors.
    return trained(tmp_path_factory.mktemp("ngrams"), Head.LINEAR, epochs=8)


@pytest.fixture(scope="module")
def run_cnn(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("ngrams-cnn"), Head.CNN, epochs=1)


def built_engines(run, engines):
    """Build engines in both layouts; return their records and the number of requested engines."""
    manifest = read_manifest(run)
    wanted = [
        one
        for kind in engines
        for layout in (Layout.PADDED, Layout.PACKED)
        for one in select_variants(manifest, *kind, layout)
    ]
    export(run, NullProgress(), wanted, settings=QUICK)
    records = read_manifest(run).engines
    assert all(one.parity is not None and one.parity.passed for one in records)
    exact = [one for one in records if one.precision is Precision.FP32]
    assert all(one.parity.max_abs < 1e-4 for one in exact)
    return records, len(wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "precision", "count"),
    [
        ("onnx", Precision.INT8, 4),  # of two kinds
        ("openvino", Precision.FP32, 2),
        ("onnx", Precision.FP32, 2),
        ("openvino", Precision.INT8, 2),
    ],
)
def test_engines_pass_the_parity_check_in_both_layouts(run, tmp_path, to, precision, count):
    records, wanted = built_engines(shutil.copytree(run, tmp_path / "run"), [(to, precision)])
    assert len(records) == wanted == count


def test_engines_with_a_head_over_all_tokens_pass_the_parity_check(run_cnn, tmp_path):
    exact = [("onnx", Precision.FP32)]
    records, wanted = built_engines(shutil.copytree(run_cnn, tmp_path / "run"), exact)
    assert len(records) == wanted == 2


def test_an_engine_without_the_ngram_table_is_rejected(run_cnn):
    def forgetful(vectors):
        vectors[:] = 0

    builder = FaultyExporter(graph=weight_changed("ngrams.weight", forgetful))
    with pytest.raises(CheckFailedError):
        export(run_cnn, NullProgress(), settings=QUICK, builder=builder)


def test_an_engine_with_a_wrong_bucket_that_no_text_reads_is_rejected(run_cnn):
    run_rows = RunRows.open(run_cnn, read_manifest(run_cnn), QUICK)
    start_id = int(run_rows.dev[0].encoding.ids[0])
    table = NgramTable.read(run_cnn / FOLDER, start_id)
    used = np.zeros(BUCKETS, np.int64)
    for row in (*run_rows.dev, *run_rows.edge_cases, *run_rows.vocabulary):
        if not row.name.startswith("n-grams"):
            used[table.read_by(row.encoding.ids)] += 1
    bucket = int(np.flatnonzero(used == 0)[0])

    def damaged(vectors):
        vectors[bucket] += 1

    builder = FaultyExporter(graph=weight_changed("ngrams.weight", damaged))
    with pytest.raises(CheckFailedError, match="failed the parity check") as caught:
        export(run_cnn, NullProgress(), settings=QUICK, builder=builder)
    assert "n-grams " in caught.value.details
