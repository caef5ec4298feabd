"""The batches of a parity check, and the faults that show only in some calls."""

from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest

from pipework.benchmarks.studies.planted_faults import ENGINE_FAULTS
from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings
from pipework.export.parity.batches import CheckedRows, RowGroup, text_counts
from pipework.export.plan import all_variants
from pipework.export.rows.edge_cases import Row
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import read_manifest
from pipework.serve.config import BATCH_TOKENS
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=60, calibration_rows=40)
BY_NAME = {variant.label: variant for variant in all_variants()}


def test_every_number_of_few_texts_and_the_powers_of_two_with_their_neighbours_are_checked():
    counts = {*text_counts(600)}
    named = {*range(1, 71), 127, 128, 129, 255, 256, 257, 511, 512, 513, 600}
    assert named <= counts
    assert len(counts - named) >= 25  # drawn, with a fixed seed
    assert max(counts) == 600
    assert counts == {*text_counts(600)}


@pytest.mark.parametrize("most", [1, 3, 70, 71, 2048])
def test_numbers_of_texts_are_within_the_limits(most):
    counts = text_counts(most)
    assert counts == sorted({*counts})
    assert {most, *range(1, min(70, most) + 1)} <= {*counts} <= {*range(1, most + 1)}


def group(lengths, first=0):
    rows = [
        Row(name=str(length), encoding=Encoding(ids=np.ones(length, np.int32), type_ids=None))
        for length in lengths
    ]
    return RowGroup(
        rows=rows, expected=Outputs.of(np.zeros((len(rows), 2), np.float32)), first=first
    )


def checked_rows(longest=20):
    return CheckedRows(
        group([2, longest, 5]),
        group([15] * 300, 3),
        group([longest] * 30, 303),
        group(range(3, longest + 1), 333),
        group([3] * 10, 333 + longest - 2),
    )


def shapes(batches):
    return {(len(batch.rows), max(len(row.encoding) for row in batch.rows)) for batch in batches}


def test_each_length_runs_alone_and_large_calls_are_larger_than_in_servers():
    batches = [*checked_rows(512).whole_calls(Layout.PADDED, on_gpu=False)]
    assert {(1, length) for length in range(3, 513)} <= shapes(batches)
    assert max(rows * longest for rows, longest in shapes(batches)) >= 4096


def test_rows_of_the_packed_layout_have_all_widths():
    batches = [*checked_rows(20).whole_calls(Layout.PACKED, on_gpu=False)]
    wide = [
        sum(len(row.encoding) for row in batch.rows) for batch in batches if "wide" in batch.rule
    ]
    assert wide == [*range(23, 41)]


@pytest.mark.parametrize("layout", Layout)
def test_calls_with_short_texts_have_every_number_of_texts(layout):
    batches = [*checked_rows().whole_calls(layout, on_gpu=False)]
    short = [batch for batch in batches if "short texts" in batch.rule]
    tokens = 1024 if layout is Layout.PADDED else 1280
    assert [len(batch.rows) for batch in short] == text_counts(tokens // 3)
    assert all(len(batch.inputs) == len(batch.expected) for batch in short)


def test_batches_of_dev_are_as_large_as_those_of_a_server():
    rows = checked_rows()
    batches = [*rows.as_in_server()]
    assert not any(batch.whole for batch in batches)
    tokens = [sum(len(row.encoding) for row in batch.rows) for batch in batches]
    assert sum(len(batch.rows) for batch in batches) == 256
    assert all(0 <= BATCH_TOKENS - size < 2 * 15 for size in tokens[:-1])
    assert all(batch.inputs[0] >= rows.dev.first for batch in batches)


def refusal(run, fault, name):
    """Export with engines that compute wrong results of some calls, and return the error."""
    with (
        ENGINE_FAULTS[fault].engines(),
        pytest.raises(CheckFailedError, match="failed the parity check") as caught,
    ):
        export(run, NullProgress(), [BY_NAME[name]], settings=QUICK)
    assert read_manifest(run).engines == ()
    return caught.value


@pytest.mark.parametrize("fault", ENGINE_FAULTS)
def test_an_engine_that_is_wrong_in_some_calls_is_refused(run, fault):
    refusal(run, fault, "onnx-fp32")


@pytest.mark.parametrize(
    ("fault", "name"),
    repeated(
        [
            ("wrong for 17 texts", "openvino-int8-static-packed"),
            ("wrong with few threads", "onnx-int8-dynamic"),
            ("wrong if the longest text has 51 tokens", "onnx-int8-static-packed"),
        ]
    ),
)
def test_such_an_engine_is_refused_in_int8_too(run, fault, name):
    refusal(run, fault, name)


def test_engines_are_checked_as_a_server_and_a_bulk_job_open_them(run, monkeypatch):
    threads, spans = [], []

    def opened(self, *given, **options):
        threads.append(options["threads"])
        construct(self, *given, **options)

    def infer(self, encodings):
        start_s = perf_counter()
        outputs = compute(self, encodings)
        spans.append((start_s, perf_counter(), id(self)))
        return outputs

    construct, compute = OnnxRuntimeEngine.__init__, OnnxRuntimeEngine.infer
    monkeypatch.setattr(OnnxRuntimeEngine, "__init__", opened)
    monkeypatch.setattr(OnnxRuntimeEngine, "infer", infer)
    monkeypatch.setattr("pipework.serve.engines.cpu_limit", lambda: 4)
    export(run, NullProgress(), [BY_NAME["onnx-fp32"]], settings=QUICK)
    assert threads == [2, 2, 4]
    pairs = pairwise(sorted(spans))
    together = [pair for pair in pairs if pair[1][0] < pair[0][1] and pair[0][2] != pair[1][2]]
    assert len(together) > 5
