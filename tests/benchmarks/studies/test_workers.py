import pytest

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies import workers
from pipework.benchmarks.studies.records.experiment_results import (
    WorkersLevel,
    WorkersLoad,
    WorkersResult,
    possible_rate,
    workers_rows,
)
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.result_page import page
from pipework.run_folder.manifest import read_manifest


def level(fronts: int, *rates: float, engines: int = 1, engine_us: float = 0.0):
    return WorkersLevel(
        fronts=fronts,
        engines=engines if fronts else 0,
        requests_per_s=rates,
        front_us=200.0,
        engine_us=engine_us,
    )


@pytest.fixture
def result():
    levels = (level(0, 4000, 5000, 1000), level(2, 4400, 4500, 2000, engine_us=50.0))
    load = WorkersLoad(engine="none", texts_per_request=1, clients=64, levels=levels)
    return WorkersResult(model="sample", loads=(load,), command=("x",), provenance=provenance())


def test_shares_are_medians_of_the_turns(result):
    one, several = workers_rows(result)
    assert one == (
        "sample",
        "1 text, 64 clients, engine: none",
        "1",
        "4,000",
        "",
        "200 µs",
        "",
    )
    assert several[2:] == ("2 fronts, 1 engine", "4,400", "110%", "200 µs", "50 µs")


@pytest.mark.parametrize(
    ("fronts", "engines", "engine_us", "expected"),
    [(0, 0, 0, 5000), (1, 1, 50, 5000), (3, 1, 50, 15_000), (8, 1, 50, 20_000), (9, 2, 50, 40_000)],
)
def test_front_processes_or_engine_processes_limit_the_rate(fronts, engines, engine_us, expected):
    assert possible_rate(level(fronts, 1, engines=engines, engine_us=engine_us)) == expected


def test_the_page_draws_each_load(result):
    html = page(result)
    assert html.count("<svg") == 1
    assert "Engine: none; texts per request: 1" in html


def test_a_short_study_is_stored(exported_run, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SERVERS", ((0, 0), (1, 2)))
    monkeypatch.setattr(workers, "LOADS", ((2, 4),))
    path = tmp_path / "workers.json"
    words = ["--run", str(exported_run), "--seconds", "0.5", "--turns", "1", "--out", str(path)]
    assert workers.main(words) == 0
    stored = read_stored(path)
    assert isinstance(stored, WorkersResult)
    record = read_manifest(exported_run).engines[0]
    assert [load.engine for load in stored.loads] == [record.name, "none"]
    for load in stored.loads:
        one, several = load.levels
        assert (one.fronts, one.engines, several.fronts, several.engines) == (0, 0, 1, 2)
        assert one.engine_us == 0 < several.engine_us
        assert min(*one.requests_per_s, *several.requests_per_s) > 0
        assert several.front_us > 0
