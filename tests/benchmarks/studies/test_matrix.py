"""A part of the stored matrix is exported again: what passed then passes today."""

from itertools import product

import pytest

from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies import matrix
from pipework.benchmarks.studies.documents.readme import RESULTS, read_all
from pipework.benchmarks.studies.matrix import TINY, fill, main
from pipework.benchmarks.studies.records.engine_results import Cell, MatrixResult
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.export.plan import all_variants
from pipework.machine import computes_bf16
from pipework.serve.engines.runtimes import RUNTIMES
from pipework.train.config.model import Head

ENGINES = all_variants()
FP32 = ENGINES[0]


def matrices():
    return [result for result in read_all(RESULTS) if isinstance(result, MatrixResult)]


def stored():
    """The cells of the stored matrix of tiny models by key."""
    return {
        cell.key: cell for result in matrices() if result.weights == TINY for cell in result.cells
    }


# Each head, each runtime, and families that can be packed and that cannot.
PART = [
    (
        EncoderFamily.ALBERT,
        Head.CNN,
        ["onnx-fp16-packed", "onnx-int8-dynamic", "openvino-int8-static"],
    ),
    (EncoderFamily.DISTILBERT, Head.GRU, ["onnx-int8-dynamic-packed", "onnx-int8-static-packed"]),
    (EncoderFamily.ELECTRA, Head.ENTITY, ["openvino-fp32", "openvino-fp32-packed"]),
    (EncoderFamily.MPNET, Head.POOLING, ["onnx-fp32-packed", "openvino-int8-static-packed"]),
    (EncoderFamily.XLNET, Head.LINEAR, ["openvino-bf16", "openvino-bf16-packed"]),
    (EncoderFamily.DEBERTA, Head.LSTM, ["tensorrt-fp32", "tensorrt-fp32-packed"]),
]


@pytest.mark.parametrize(("family", "head", "engines"), PART)
def test_stored_cells_are_reproduced(family, head, engines):
    if not computes_bf16() and any("bf16" in label for label in engines):
        pytest.skip("this processor has no bf16")
    before = stored()
    for cell in fill(family, head, [variant for variant in ENGINES if variant.label in engines]):
        assert cell.key in before, (
            "store the matrix again: python -m pipework.benchmarks.studies.matrix"
        )
        reached = before[cell.key].reason is None
        assert not reached or cell.reason is None, (cell, before[cell.key])
        assert not before[cell.key].proven or cell.proven


def test_the_stored_matrix_is_complete():
    keys = {
        (family, head, variant.label)
        for family, head, variant in product(EncoderFamily, Head, ENGINES)
    }
    assert stored().keys() == keys
    (minilm,) = (result for result in matrices() if result.weights != TINY)
    assert {cell.key for cell in minilm.cells} == {
        key for key in keys if key[0] is EncoderFamily.BERT
    }


def test_the_repeated_part_covers_every_head_and_runtime():
    assert {head for _, head, _ in PART} == set(Head)
    labels = {label for _, _, engines in PART for label in engines}
    assert labels < {variant.label for variant in ENGINES}
    assert {label.partition("-")[0] for label in labels} == {runtime.format for runtime in RUNTIMES}


@pytest.fixture
def exports(monkeypatch):
    """Instant fake exports; packed engines fail until `cannot` is cleared."""
    requested, cannot = [], {"packed"}

    def pretend(family, head, variants, _model=None):
        for variant in variants:
            requested.append((family, head, variant.label))
            reason = "cannot be packed" if variant.layout in cannot else None
            max_abs = None if reason else 1e-7
            yield Cell(
                family=family, head=head, engine=variant.label, max_abs=max_abs, reason=reason
            )

    monkeypatch.setattr(matrix, "fill", pretend)
    return requested, cannot


def test_a_second_start_repeats_only_failed_cells(tmp_path, exports, capsys):
    requested, cannot = exports
    out = tmp_path / "m.json"
    command = ["--out", str(out), "--heads", "gru", "--engines", "onnx-fp32", "onnx-fp32-packed"]
    assert main([*command, "--families", "bert", "xlnet"]) == 0
    assert "xlnet gru onnx-fp32-packed: cannot be packed\n" in capsys.readouterr().out
    requested.clear()
    cannot.clear()
    assert main([*command, "--families", "bert"]) == 0
    assert requested == [("bert", "gru", "onnx-fp32-packed")]
    assert capsys.readouterr().out == "bert gru onnx-fp32-packed: 1.0e-07\n"
    assert read_stored(out).earlier == ()
    cells = read_stored(out).cells
    assert [cell.proven for cell in cells] == [True, True, True, False]


@pytest.mark.usefixtures("exports")
def test_cells_of_another_commit_keep_their_provenance(tmp_path):
    out = tmp_path / "m.json"
    command = ["--out", str(out), "--heads", "gru", "--engines", "onnx-fp32"]
    assert main([*command, "--families", "bert"]) == 0
    first = read_stored(out)
    exports = first.provenance.model_copy(update={"git_commit": "0" * 40})
    write_result(out, first.model_copy(update={"provenance": exports}))
    for family in ("xlnet", "rembert"):
        assert main([*command, "--families", family]) == 0
        assert read_stored(out).earlier == (exports,)
    assert len(read_stored(out).cells) == 3


@pytest.mark.usefixtures("exports")
def test_a_result_of_other_weights_is_not_completed(tmp_path, capsys):
    command = ["--out", str(tmp_path / "m.json"), "--families", "bert", "--heads", "gru"]
    assert main(command) == 0
    other = tmp_path / "model"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    assert main([*command, "--model", str(other)]) == 2
    assert "holds another result" in capsys.readouterr().err


def test_any_exception_of_an_export_is_recorded_as_reason(monkeypatch):
    def fail(run, *_, **__):
        message = f"{run}/x\nand a long story"
        raise OSError(message)

    monkeypatch.setattr(matrix, "export", fail)
    (cell,) = fill(EncoderFamily.BERT, Head.LINEAR, [FP32])
    assert (cell.proven, cell.reason) == (False, "OSError: RUN/x")
