"""A short measurement of a real server, and the rows of the table."""

import pytest

from pipework.benchmarks.results_schema.level import Arrivals, Latency, Level, ServerUse
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies import serving
from pipework.benchmarks.studies.records.serving_results import Memory, ServingResult, serving_rows
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.serving import LoadPlan, main, measure
from pipework.progress import NullProgress


@pytest.mark.slow
def test_a_real_server_is_measured_and_stored(exported_run, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "TURNS", 1)
    plan = LoadPlan(run=exported_run, name="sample", seconds=0.6, minutes=0.05)
    result = measure(plan, NullProgress())
    write_result(tmp_path / "result.json", result)
    assert read_stored(tmp_path / "result.json") == result
    assert result.engine == "onnx-fp32"
    assert result.command == plan.command
    assert result.half.requests == result.half.sent > 0
    assert result.double.rate == pytest.approx(4 * result.after.rate, rel=1e-2)
    assert result.single_texts_per_s > 0
    assert result.more_clients == 128
    assert result.more_clients_texts_per_s > 0
    assert 0 < result.double.server.generator_cores < 64
    assert result.memory.peak_mib >= result.memory.at_end_mib > 10


def test_the_stored_command_contains_no_path(tmp_path):
    plan = LoadPlan(run=tmp_path, name="sample", seconds=7.5, minutes=0)
    assert (
        " ".join(plan.command)
        == "python -m pipework.benchmarks.studies.serving RUN sample --seconds 7.5"
    )
    watched = LoadPlan(run=tmp_path, name="sample", seconds=15, minutes=2)
    assert watched.command[-4:] == ("--seconds", "15", "--minutes", "2")


def test_a_folder_without_a_run_is_reported(tmp_path, capsys):
    assert main([str(tmp_path), "nothing", "--out", str(tmp_path / "result.json")]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def times(p99):
    return Latency(p50=1.0, p90=2.0, p95=3.0, p99=p99, mean=1.5, max=p99 + 1)


def used(cores, generator_cores):
    return ServerUse(cores=cores, generator_cores=generator_cores, peak_mib=300)


def level(rate, goodput, rejected=0):
    return Level(
        rate=rate,
        arrivals=Arrivals.POISSON,
        texts_per_request=1,
        duration_s=10,
        sent=1000,
        requests=1000 - rejected,
        texts=1000 - rejected,
        texts_per_s=goodput,
        requests_per_s=goodput,
        latency_ms=times(50.0),
        histogram=None,
        refused_ms=times(9.0) if rejected else None,
        errors={"HTTP 429": rejected} if rejected else {},
    )


def test_the_table_compares_measurements_with_targets(served):
    result = ServingResult(
        model="headlines",
        engine="onnx-fp32",
        texts="synthetic",
        batch_tokens=1024,
        offline_texts_per_s=(390.0, 410.0),
        batch_ms=40.0,
        several_texts_per_s=380.0,
        several=8,
        single_texts_per_s=300.0,
        more_clients=128,
        more_clients_texts_per_s=330.0,
        half=level(150, 150),
        double=level(600, 285, rejected=400).model_copy(update={"server": used(1.5, 0.3)}),
        peak=level(300, 300).model_copy(
            update={"rate": None, "arrivals": None, "concurrency": 64, "server": used(1.75, 0.1)}
        ),
        after=level(150, 149),
        memory=Memory(minutes=10, after_first_minute_mib=300, at_end_mib=301, peak_mib=305),
        command=("python",),
        provenance=served.provenance,
    )
    measured = [row[-1] for row in serving_rows(result)]
    assert measured == [
        "400 texts/s (before, after: 390, 410)",
        "380 texts/s, 95%",
        "300 texts/s, 75%",
        "330 texts/s, 82%",
        "p99 50.0 ms",
        "285 texts/s, 95%",
        "400 of 1,000: p50 1.00, p99 9.00, maximum 10.0 ms",
        "1.50 + 0.30; at the peak 1.75 + 0.10",
        "p99 50.0 ms",
        "300 MiB after 1 minute, 301 at the end, maximum 305",
    ]
    loads = [row[1] for row in serving_rows(result)]
    assert loads[2:4] == ["single texts, peak with 64 clients", "single texts, 128 clients"]
    assert serving_rows(result)[4][2] == "p99 < 160 ms (4 batches)"
