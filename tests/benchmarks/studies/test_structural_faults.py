"""Outcomes of planted faults, and their table."""

import pytest

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.records.grid_results import Cell, GridResult
from pipework.benchmarks.studies.structural_faults import NONE, VARIANTS, plant

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


def test_another_tokenizer_is_refused_before_any_engine_is_built(trained_run):
    fault = "upper case kept by the tokenizer"
    for outcome in plant(trained_run, fault, VARIANTS):
        assert (outcome.reason, outcome.text) == ("token ids", "refused")


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
