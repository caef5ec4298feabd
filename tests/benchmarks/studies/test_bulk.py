"""Real jobs of a few rows: whole, killed, as shards; differences and a wrong plan are reported."""

from typing import ClassVar

import pyarrow.parquet as pq
import pytest

from pipework.benchmarks.studies import bulk, bulk_rates
from pipework.benchmarks.studies.bulk import BulkStudy, finished_rows, main
from pipework.benchmarks.studies.bulk_rates import other_cores, write_rows
from pipework.benchmarks.studies.records.bulk_results import BulkRates, WorkRate
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.errors import CheckFailedError
from pipework.progress import NullProgress


@pytest.fixture(scope="module")
def work(exported_run, tmp_path_factory):
    """The folder of a complete study; read it only."""
    folder = tmp_path_factory.mktemp("study")
    assert study(exported_run, folder) == 0
    return folder


def study(run, work, **options):
    sizes = {"rows": 9000, "kills": 2, "rate-rows": 300, **options}
    words = [str(word) for name, size in sizes.items() for word in (f"--{name}", size)]
    places = ["--run", str(run), "--name", "sample"]
    places += ["--work", str(work), "--out", str(work / "result.json")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bulk_rates, "ENGINE_S", 0.1)
        patched.setattr(bulk, "KILL_SHARE", 0.1)  # early kills: the job must not end before
        return main([*places, *words])


def test_killed_and_sharded_jobs_have_the_parts_of_the_whole_job(work):
    result = read_stored(work / "result.json")
    assert [(job.rows, job.distinct_rows) for job in result.jobs] == [(9000, 9000)] * 3
    assert len({job.sha256 for job in result.jobs}) == 1
    assert [job.kills for job in result.jobs] == [0, 2, 0]
    assert result.row_groups == result.jobs[0].parts > 4
    assert finished_rows(work / "killed") == 9000
    log = (work / "killed.log").read_text()
    assert log.count("9,000 rows in") == 1  # only the last process came to its end
    assert result.samples[-1].mib > 10
    rates = result.rates
    assert set(rates.engine) == {1, 8, 32, 2048}
    assert len(rates.other_cores) == 4  # a round for each row group
    for rate in (rates.bulk, *rates.engine.values()):
        assert len(rate.per_s) == len(rate.per_cpu_s) == 4
        assert min(rate.per_s + rate.per_cpu_s) > 0
    assert "RUN" in result.command
    assert str(work) not in " ".join(result.command)
    rows = [row[1:] for row in result.table_rows()]
    assert rows[1][0] == "2 times killed at a random moment"
    assert rows[1][2].startswith("9,000 rows, each once; parts equal; ")


def test_parts_that_differ_and_lost_rows_are_reported(
    exported_run, work, tmp_path, monkeypatch, capsys
):
    result = read_stored(work / "result.json")
    whole, killed, shards = result.jobs
    changed = killed.model_copy(update={"sha256": "0" * 64, "rows": 9001})
    other = result.model_copy(update={"jobs": (whole, changed, shards)})
    monkeypatch.setattr(bulk, "measure", lambda *_: other)
    assert study(exported_run, tmp_path) == 3
    assert "differ from those of the uninterrupted job: 2 times killed" in capsys.readouterr().err
    row = [*read_stored(tmp_path / "result.json").table_rows()][1]
    assert row[3].startswith("9,001 rows, NOT each once; parts DIFFER")


def test_a_work_folder_is_used_once(exported_run, work, capsys):
    assert study(exported_run, work) == 2
    assert f"{work / 'in'} has the rows of another study" in capsys.readouterr().err


def test_a_job_that_ends_before_the_last_kill_is_reported(exported_run, tmp_path, monkeypatch):
    monkeypatch.setattr(bulk.time, "sleep", lambda _: None)
    monkeypatch.setattr(bulk.random.Random, "uniform", lambda *_: 0)
    write_rows(tmp_path / "in", 100, seed=0)
    monkeypatch.setattr(bulk, "temporary_files", lambda _: set())  # wait until it ends
    started = BulkStudy(
        run=exported_run,
        name="x",
        work=tmp_path,
        rows=100,
        kills=2,
        rate_rows=1,
        progress=NullProgress(),
    )
    with pytest.raises(CheckFailedError, match="the job ended before kill 1 of 2"):
        started.killed(1.0)


def test_a_round_counts_the_inputs_of_all_calls(monkeypatch):
    class Engine:
        calls: ClassVar[list[int]] = []

        def infer(self, chunk):
            self.calls.append(len(chunk))

    clock = iter([0.0, 0.0, *[0.0] * 5, 9.0, 5.0])  # the limit, the start, calls, the end
    monkeypatch.setattr(bulk_rates.time, "perf_counter", lambda: next(clock))
    cpu = iter([1.0, 3.0])
    monkeypatch.setattr(bulk_rates.time, "process_time", lambda: next(cpu))
    rounds = bulk_rates.Rounds()
    rounds.measure(Engine(), ["a", "b", "c"], 2)
    assert Engine.calls == [2, 1, 2, 1, 2]
    assert (rounds.per_s, rounds.per_cpu_s) == ([1.6], [4.0])


def test_the_ratios_are_medians_of_the_rounds():
    job = WorkRate(per_s=(10, 20, 90), per_cpu_s=(1, 2, 3))
    engine = WorkRate(per_s=(10, 10, 100), per_cpu_s=(2, 2, 2))
    rates = BulkRates(rows=3, bulk=job, engine={8: engine}, other_cores=(0, 0, 0))
    assert rates.ratios(8) == (1.0, 1.0)


def test_rows_are_numbered_and_in_row_groups_of_many_sizes(tmp_path):
    write_rows(tmp_path / "in", 30_000, seed=0)
    files = [pq.ParquetFile(path) for path in sorted((tmp_path / "in").iterdir())]
    assert [file.metadata.num_rows for file in files] == [7500] * 4
    sizes = {
        file.metadata.row_group(group).num_rows
        for file in files
        for group in range(file.metadata.num_row_groups)
    }
    assert {1, 10} < sizes
    assert max(sizes) > 2000
    numbers = [number for file in files for number in file.read()["id"].to_pylist()]
    assert numbers == [*range(30_000)]
    texts = files[0].read()["text"].to_pylist()
    assert len(set(texts)) > 7000


def test_the_processors_of_other_programs_are_counted(monkeypatch):
    times, values = iter([10.0, 13.0]), []
    monkeypatch.setattr(bulk_rates, "_other_cpu_s", lambda: next(times))
    moments = iter([100.0, 102.0])
    monkeypatch.setattr(bulk_rates.time, "monotonic", lambda: next(moments))
    with other_cores(values):
        pass
    assert values == [1.5]
