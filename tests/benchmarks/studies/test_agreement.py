"""`pipe bench` and perf_analyzer measure one server, and the table of both."""

from pathlib import Path

import pytest

from pipework.benchmarks.studies import agreement
from pipework.benchmarks.studies.agreement import main, read_report
from pipework.benchmarks.studies.records.serving_results import (
    AGREEMENT_HEAD,
    AgreementResult,
    agreement_rows,
)
from pipework.benchmarks.studies.records.stored_results import read_stored

PERF_ANALYZER = Path(__file__).parents[4] / "shared" / "tools" / "perf_analyzer.sh"
REPORT = """Concurrency,Inferences/Second,Sent,p50 latency,p90 latency,p95 latency,p99 latency
4,120.5,17,1500,2500,3000,9000
"""


def test_a_report_is_converted_to_milliseconds(tmp_path):
    path = tmp_path / "report.csv"
    path.write_text(REPORT)
    report = read_report(path)
    assert (report.texts_per_s, report.p50_ms, report.p95_ms, report.p99_ms) == (120.5, 1.5, 3, 9)


def test_a_missing_program_is_reported(exported_run, tmp_path, capsys):
    out = tmp_path / "found.json"
    words = [f"{exported_run}", "sample", "--perf-analyzer", "/nowhere", "--seconds", "0.3"]
    assert main([*words, "--out", f"{out}"]) == 3
    assert "error: /nowhere cannot be started: No such file" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_both_generators_agree_and_only_the_open_loop_measures_a_stall(
    exported_run, tmp_path, monkeypatch
):
    if not PERF_ANALYZER.is_file():
        pytest.skip("perf_analyzer is absent: put a folder shared/tools next to the checkout")
    monkeypatch.setattr(agreement, "LOADS", (agreement.LOADS[0], agreement.LOADS[-1]))
    out = tmp_path / "found.json"
    words = [f"{exported_run}", "sample", "--perf-analyzer", f"{PERF_ANALYZER}"]
    assert main([*words, "--seconds", "2.4", "--rounds", "1", "--out", f"{out}"]) == 0
    result = read_stored(out)
    assert isinstance(result, AgreementResult)
    for pair in result.pairs:
        assert 0.4 < pair.ratio("texts_per_s") < 2.5
        assert 0.4 < pair.ratio("p50_ms") < 2.5
    assert result.stall.open_p99_ms > 300
    assert result.stall.closed_p99_ms < 300
    rows = [*agreement_rows(result)]
    assert len(rows) == 3 * len(result.pairs) + 1
    assert {len(row) for row in rows} == {len(AGREEMENT_HEAD)}
