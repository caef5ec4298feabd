"""What is proven in the stored matrix is proven today too: a part of it is made again here."""

from itertools import product

import pytest

from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies import matrix
from pipework.benchmarks.studies.engine_results import Cell, MatrixResult
from pipework.benchmarks.studies.families import Family
from pipework.benchmarks.studies.matrix import TINY, fill, main
from pipework.benchmarks.studies.readme import RESULTS, read_all
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.cpu import computes_bf16
from pipework.export.plan import every
from pipework.run_folder.engine_record import EngineFormat
from pipework.train.config.model import Head

ENGINES = every()
FP32 = ENGINES[0]


def matrices():
    return [one for one in read_all(RESULTS) if isinstance(one, MatrixResult)]


def stored():
    """The cells of the stored matrix of tiny models."""
    return {cell.key: cell for one in matrices() if one.weights == TINY for cell in one.cells}


# Each head, each runtime, and families that can be packed and that cannot.
PART = [
    (Family.ALBERT, Head.CNN, ["onnx-fp16-packed", "onnx-int8-dynamic", "openvino-int8-static"]),
    (Family.DISTILBERT, Head.GRU, ["onnx-int8-dynamic-packed", "onnx-int8-static-packed"]),
    (Family.ELECTRA, Head.ENTITY, ["openvino-fp32", "openvino-fp32-packed"]),
    (Family.XLNET, Head.LINEAR, ["openvino-bf16", "openvino-bf16-packed"]),
    (Family.DEBERTA, Head.LSTM, ["tensorrt-fp32", "tensorrt-fp32-packed"]),
]


@pytest.mark.parametrize(("family", "head", "engines"), PART)
def test_what_is_proven_or_built_in_the_stored_matrix_is_so_today(family, head, engines):
    if not computes_bf16() and any("bf16" in label for label in engines):
        pytest.skip("this processor has no bf16")
    before = stored()
    for cell in fill(family, head, [one for one in ENGINES if one.label in engines]):
        assert cell.key in before, (
            "store the matrix again: python -m pipework.benchmarks.studies.matrix"
        )
        reached = before[cell.key].reason is None
        assert not reached or cell.reason is None, (cell, before[cell.key])
        assert not before[cell.key].proven or cell.proven


def test_every_cell_is_stored():
    keys = {(family, head, one.label) for family, head, one in product(Family, Head, ENGINES)}
    assert stored().keys() == keys
    (minilm,) = (one for one in matrices() if one.weights != TINY)
    assert {cell.key for cell in minilm.cells} == {key for key in keys if key[0] is Family.BERT}


def test_the_part_has_every_head_and_every_runtime():
    assert {head for _, head, _ in PART} == set(Head)
    labels = {label for _, _, engines in PART for label in engines}
    assert labels < {one.label for one in ENGINES}
    assert {label.partition("-")[0] for label in labels} == set(EngineFormat)


@pytest.fixture
def made(monkeypatch):
    """Exports that take no time: packed engines cannot be made, until they can."""
    asked, cannot = [], {"packed"}

    def pretend(family, head, variants, _model=None):
        for one in variants:
            asked.append((family, head, one.label))
            reason = "cannot be packed" if one.layout in cannot else None
            max_abs = None if reason else 1e-7
            yield Cell(family=family, head=head, engine=one.label, max_abs=max_abs, reason=reason)

    monkeypatch.setattr(matrix, "fill", pretend)
    return asked, cannot


def test_started_again_it_tries_only_what_is_not_done(tmp_path, made, capsys):
    asked, cannot = made
    out = tmp_path / "m.json"
    command = ["--out", str(out), "--heads", "gru", "--engines", "onnx-fp32", "onnx-fp32-packed"]
    assert main([*command, "--families", "bert", "xlnet"]) == 0
    assert "xlnet gru onnx-fp32-packed: cannot be packed\n" in capsys.readouterr().out
    asked.clear()
    cannot.clear()
    assert main([*command, "--families", "bert"]) == 0
    assert asked == [("bert", "gru", "onnx-fp32-packed")]
    assert capsys.readouterr().out == "bert gru onnx-fp32-packed: 1.0e-07\n"
    assert read_stored(out).earlier == ()
    cells = read_stored(out).cells
    assert [cell.proven for cell in cells] == [True, True, True, False]


@pytest.mark.usefixtures("made")
def test_cells_of_another_commit_keep_their_origin(tmp_path):
    out = tmp_path / "m.json"
    command = ["--out", str(out), "--heads", "gru", "--engines", "onnx-fp32"]
    assert main([*command, "--families", "bert"]) == 0
    first = read_stored(out)
    made = first.provenance.model_copy(update={"git_commit": "0" * 40})
    write_result(out, first.model_copy(update={"provenance": made}))
    for family in ("xlnet", "rembert"):
        assert main([*command, "--families", family]) == 0
        assert read_stored(out).earlier == (made,)
    assert len(read_stored(out).cells) == 3


@pytest.mark.usefixtures("made")
def test_a_file_of_other_weights_is_not_gone_on_with(tmp_path, capsys):
    command = ["--out", str(tmp_path / "m.json"), "--families", "bert", "--heads", "gru"]
    assert main(command) == 0
    other = tmp_path / "model"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    assert main([*command, "--model", str(other)]) == 2
    assert "holds another result" in capsys.readouterr().err


def test_whatever_goes_wrong_in_an_export_is_the_reason(monkeypatch):
    def fail(run, *_, **__):
        message = f"{run}/x\nand a long story"
        raise OSError(message)

    monkeypatch.setattr(matrix, "export", fail)
    (cell,) = fill(Family.BERT, Head.LINEAR, [FP32])
    assert (cell.proven, cell.reason) == (False, "OSError: RUN/x")
