"""Outcomes of planted faults, and their table."""

import pytest

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.planted_faults import FAULTS, NO_FAULT
from pipework.benchmarks.studies.records.engine_results import (
    FaultsResult,
    PlantedFault,
    fault_lines,
)
from pipework.benchmarks.studies.structural_faults import NONE, VARIANTS, plant

pytestmark = pytest.mark.study


def test_a_fault_is_refused_and_a_correct_export_passes(trained_run):
    fp32, int8 = VARIANTS[0], VARIANTS[4]
    (correct,) = plant(trained_run, NONE, NO_FAULT, [fp32])
    assert (correct.limits, correct.graph) == ("", False)
    fault = "one class shifted by 0.18"
    refused, graph = plant(trained_run, fault, FAULTS[fault], [fp32, int8])
    assert "max_abs" in refused.limits
    assert "max_abs" in graph.limits
    assert (refused.graph, graph.graph) == (False, True)
    assert not (trained_run / "engines").exists()


def test_another_tokenizer_is_refused_before_any_engine_is_built(trained_run):
    fault = "upper case kept by the tokenizer"
    for outcome in plant(trained_run, fault, FAULTS[fault], VARIANTS):
        assert (outcome.limits, outcome.graph) == ("token ids", False)


def test_the_table_has_a_row_per_fault_and_a_column_per_engine():
    outcomes = [
        PlantedFault(run="r", fault=fault, engine=engine, limits=limits, graph=graph)
        for fault, engine, limits, graph in (
            ("none", "onnx-fp32", "", False),
            ("none", "onnx-fp32-packed", "", False),
            ("none", "onnx-int8", "", False),
            ("swap", "onnx-fp32", "max_abs", False),
            ("swap", "onnx-fp32-packed", "", False),
            ("swap", "onnx-int8", "max_abs", True),
        )
    ]
    result = FaultsResult(outcomes=tuple(outcomes), command=(), provenance=provenance())
    head, rows = fault_lines(result)
    assert head == ("run", "fault", "onnx fp32", "onnx int8")
    assert rows == [
        ("r", "none", "passed", "passed"),
        ("r", "swap", "refused · passed", "graph refused"),
    ]
