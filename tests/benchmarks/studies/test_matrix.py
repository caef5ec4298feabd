"""A part of the stored matrix is exported again: what passed then passes today."""

from itertools import product

import pytest

from pipework.benchmarks.studies import matrix
from pipework.benchmarks.studies.documents.readme import RESULTS, read_all
from pipework.benchmarks.studies.matrix import TINY, VARIANTS, fill, main
from pipework.benchmarks.studies.records.grid_results import Cell, column_of
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.machine import computes_bf16
from pipework.serve.engines.runtimes import RUNTIMES
from pipework.train.config.model import Head

FP32 = VARIANTS[0]


def matrices():
    return [result for result in read_all(RESULTS) if getattr(result, "table", "") == "matrix"]


def key(cell):
    """Family, head, engine and layout, which identify a cell."""
    return (*cell.row, cell.column, cell.packed)


def stored():
    """The cells of the stored matrix of tiny models by key."""
    return {
        key(cell): cell for result in matrices() if result.weights == TINY for cell in result.cells
    }


# Each head, each runtime, and families that can be packed and that cannot.
PART = [
    (EncoderFamily.ALBERT, Head.CNN, ["onnx-fp16-packed", "onnx-int8-dynamic"]),
    (EncoderFamily.DISTILBERT, Head.GRU, ["onnx-int8-static-packed"]),
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
    for cell in fill(family, head, [variant for variant in VARIANTS if variant.label in engines]):
        assert key(cell) in before, (
            "store the matrix again: python -m pipework.benchmarks.studies.matrix"
        )
        reached = before[key(cell)].reason is None
        assert not reached or cell.reason is None, (cell, before[key(cell)])
        assert before[key(cell)].value is None or cell.value is not None


def test_the_stored_matrix_is_complete():
    keys = {
        (family, head, *column_of(variant))
        for family, head, variant in product(EncoderFamily, Head, VARIANTS)
    }
    assert stored().keys() == keys
    (minilm,) = (result for result in matrices() if result.weights != TINY)
    assert set(map(key, minilm.cells)) == {each for each in keys if each[0] is EncoderFamily.BERT}


def test_the_repeated_part_covers_every_head_and_runtime():
    assert {head for _, head, _ in PART} == set(Head)
    labels = {label for _, _, engines in PART for label in engines}
    assert labels < {variant.label for variant in VARIANTS}
    assert {label.partition("-")[0] for label in labels} == {runtime.format for runtime in RUNTIMES}


def test_the_cells_are_stored(run_study, monkeypatch):
    def pretend(family, head, variants, _model):
        for variant in variants:
            column, packed = column_of(variant)
            outcome = {"reason": "cannot be packed"} if packed else {"value": 1e-7}
            yield Cell(row=(family, head), column=column, packed=packed, **outcome)

    monkeypatch.setattr(matrix, "fill", pretend)
    words = ["--heads", "gru", "--families", "xlnet", "--engines", "onnx-fp32", "onnx-fp32-packed"]
    result = run_study(main, *words)
    assert [*result.table_rows()] == [("xlnet", "gru", "1e-07 · [1]")]
    assert result.notes() == ["[1] cannot be packed"]
    assert result.command[3:] == ("--out", "OUT", *words[2:4], *words[:2], *words[4:])


def test_any_exception_of_an_export_is_recorded_as_reason(monkeypatch):
    def fail(run, *_, **__):
        message = f"{run}/x\nand a long story"
        raise OSError(message)

    monkeypatch.setattr(matrix, "export", fail)
    (cell,) = fill(EncoderFamily.BERT, Head.LINEAR, [FP32])
    assert (cell.value, cell.reason) == (None, "OSError: RUN/x")
