"""Outcomes of planted faults, and their table."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies import structural_faults
from pipework.benchmarks.studies.planted_faults import FAULTS, LOWERED_FAULTS, NO_FAULT
from pipework.benchmarks.studies.records.grid_results import Cell, GridResult
from pipework.benchmarks.studies.structural_faults import LOWER, NONE, VARIANTS, main, plant
from pipework.errors import CheckFailedError, DataError
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Precision, Scaling
from pipework.train.config.run_config import load_config
from pipework.train.run import train
from tests.serve import test_spans

pytestmark = pytest.mark.study


def test_a_fault_is_refused_and_a_correct_export_passes(trained_run):
    fp32, int8 = VARIANTS[0], VARIANTS[4]
    (correct,) = plant(trained_run, NONE, [fp32])
    assert (correct.text, correct.reason) == ("passed", None)
    fault = "one class shifted by 0.18"
    refused, graph = plant(trained_run, fault, [fp32, int8])
    assert "max_abs" in refused.reason
    assert "max_abs" in graph.reason
    assert (refused.text, graph.text) == ("refused", "graph refused")
    assert not (trained_run / "engines").exists()


def test_a_fault_of_the_conversion_or_of_the_engine_is_refused(trained_run):
    int8 = VARIANTS[4]
    noise = "noise of 0.01, after the conversion"
    (outcome,) = plant(trained_run, noise, [int8])
    assert (outcome.text, outcome.reason) == ("refused", "node")
    texts = "wrong for 17 texts"
    (outcome,) = plant(trained_run, texts, [int8])
    assert outcome.text == "refused"
    assert "spread" in outcome.reason


def quickly(faults, *quick):
    """Return some faults, and the others with the mark `slow`."""
    others = (fault for fault in faults if fault not in quick)
    return [*quick, *(pytest.param(fault, marks=pytest.mark.slow) for fault in others)]


@pytest.fixture(scope="module")
def span_run(tmp_path_factory):
    """A run that finds spans, without engines."""
    folder = tmp_path_factory.mktemp("spans")
    test_spans.write(folder / "train.jsonl", test_spans.rows(300, seed=0))
    test_spans.write(folder / "dev.jsonl", test_spans.rows(80, seed=1))
    (folder / "config.toml").write_text(test_spans.CONFIG)
    train(
        load_config(str(folder / "config.toml"), ["train.epochs=5"]), folder / "run", NullProgress()
    )
    return folder / "run"


@pytest.mark.parametrize("fault", quickly(FAULTS, NONE, "mask leaks (e^-5)", "wrong pooling"))
def test_faults_in_a_model_that_finds_spans_are_refused(span_run, fault):
    fp32 = [variant for variant in VARIANTS if variant.precision is Precision.FP32]
    expected = "passed" if fault == NONE else "refused"
    assert {cell.text for cell in plant(span_run, fault, fp32)} == {expected}


@pytest.mark.parametrize(
    "fault", quickly(LOWERED_FAULTS, NONE, "one channel of a layer doubled, after the conversion")
)
def test_faults_in_the_int8_of_a_model_that_finds_spans_are_refused(span_run, fault):
    int8 = [variant for variant in LOWER if variant.scaling is Scaling.DYNAMIC][:1]
    (outcome,) = plant(span_run, fault, int8)
    assert (outcome.text == "passed") is (fault == NONE)


def test_another_tokenizer_is_refused_before_any_engine_is_built(trained_run):
    fault = "upper case kept by the tokenizer"
    for outcome in plant(trained_run, fault, VARIANTS):
        assert (outcome.reason, outcome.text) == ("token ids", "refused")


@pytest.mark.parametrize(
    ("commits", "again"),
    [("11", ["b"]), ("12", [NONE, "a", "b"]), (["1-dirty"] * 2, [NONE, "a", "b"])],
)
def test_an_interrupted_study_continues_at_the_same_commit(
    commits, again, trained_run, run_study, monkeypatch, tmp_path
):
    planted, later = [], []

    def plant(run, fault, variants):
        planted.append(fault)
        if fault == "b" and not later:
            raise CheckFailedError(fault)
        text = "passed" if fault == NONE else "refused"
        return [Cell(row=(run.name, fault), column=variants[0].label, text=text)]

    monkeypatch.setattr(structural_faults, "plant", plant)
    monkeypatch.setattr(structural_faults, "EXPORTERS", dict.fromkeys((NONE, "a", "b"), NO_FAULT))
    monkeypatch.setattr(structural_faults, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(structural_faults, "git_commit", lambda _: commits[len(later)])
    words = ["--runs", trained_run]
    with pytest.raises(DataError, match="cannot be read"):
        run_study(main, *words, code=3)
    planted.clear()
    later.append(True)
    result = run_study(main, *words)
    assert sorted(planted) == sorted(again)
    assert [cell.row[1] for cell in result.cells] == [NONE, "a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_the_table_has_a_row_per_fault_and_a_column_per_engine():
    outcomes = [
        Cell(row=("r", fault), column=engine, packed=packed, text=text, reason=limits)
        for fault, engine, packed, text, limits in (
            ("none", "onnx fp32", False, "passed", None),
            ("none", "onnx fp32", True, "passed", None),
            ("none", "onnx int8", False, "passed", None),
            ("swap", "onnx fp32", False, "refused", "max_abs"),
            ("swap", "onnx fp32", True, "passed", None),
            ("swap", "onnx int8", False, "graph refused", "max_abs"),
        )
    ]
    result = GridResult(
        experiment="faults",
        names=("run", "fault"),
        cells=tuple(outcomes),
        provenance=provenance(),
    )
    assert result.head() == ("run", "fault", "onnx fp32", "onnx int8")
    assert [*result.table_rows()] == [
        ("r", "none", "passed", "passed"),
        ("r", "swap", "refused · passed", "graph refused"),
    ]
    assert result.notes() == []
