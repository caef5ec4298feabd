"""Jobs: parts are written once and completely, and a job continues after any interruption."""

import errno
import io
import json
import os
import random
import resource
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipework.data.examples import Source
from pipework.errors import ChangedFileError, ConfigError, DataError, PipeError
from pipework.progress import NullProgress
from pipework.run_folder.read_options import Reading
from pipework.serve.bulk import input_files, job, job_folder, stored_files
from pipework.serve.bulk.input_files import WorkItem
from pipework.serve.bulk.job import BulkOptions, score_files
from pipework.serve.bulk.records import RowReader
from pipework.serve.bulk.stored_files import StoredFile
from tests.commands import ForkedPipe, ForkedProcess, pipe

WORDS = ["rain", "sun", "wind", "goal", "team", "match", "bank", "rate", "stock"]
GROUPS = [1, 700, 40, 2500]


def write_parquet(path: Path, groups: list[int], seed: int = 0) -> None:
    """Write a file with row groups of these sizes."""
    rng, first = random.Random(seed), 0
    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "when": pa.date32()})
    with pq.ParquetWriter(path, schema) as writer:
        for rows in groups:
            texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(rows)]
            columns = {"id": range(first, first + rows), "text": texts, "when": [rows] * rows}
            arrays = [pa.array(columns[name], schema.field(name).type) for name in schema.names]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            first += rows


@pytest.fixture(scope="module")
def deep_run(make_run) -> Path:
    """A model that needs a second for the job, so that it can be interrupted."""
    return make_run(layers=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    for number in range(2):
        write_parquet(folder / f"file{number}.parquet", GROUPS, number)
    return folder


@pytest.fixture(scope="module")
def whole(deep_run, files, tmp_path_factory) -> dict[str, bytes]:
    """The parts of a job that was not interrupted."""
    out = tmp_path_factory.mktemp("whole")
    score(deep_run, files, out)
    return parts(out)


SPEED = {
    "texts_per_s": 1e9,
    "batch": 8,
    "p50_ms": 1.0,
    "rows": 1,
    "threads": 1,
    "processor": "",
    "variation": 0.0,
}


def score(run: Path, pattern: object, out: Path | str, **options):
    return score_files(run, BulkOptions(pattern=str(pattern), out=out, **options), NullProgress())


def part_files(out: Path) -> list[Path]:
    """Return the parts of a job in the order of the input."""
    return sorted((out / "parts").glob("*.parquet"))


def parts(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in part_files(out)}


def snapshot(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_all_rows_are_scored_in_the_order_of_the_input(run, files, tmp_path):
    summary = score(run, files, tmp_path / "out", keep=["id", "when"])
    table = pa.concat_tables(pq.read_table(path) for path in part_files(tmp_path / "out"))
    source = pq.read_table(sorted(files.iterdir()))
    predicted = ["predicted_label", "predicted_score", "truncated"]
    names = ["id", "when", "source_file", "source_row", *predicted]
    assert table.column_names == names
    assert table.select(["id", "when"]).equals(source.select(["id", "when"]))
    rows = sum(GROUPS)
    assert table["source_row"].to_pylist() == [*range(1, rows + 1)] * 2
    assert table["source_file"].to_pylist() == ["file0.parquet"] * rows + ["file1.parquet"] * rows
    sample = random.Random(0).sample(range(2 * rows), 40)
    texts = source["text"].to_pylist()
    lines = pipe("predict", run, *(texts[row] for row in sample)).stdout.splitlines()
    for row, line in zip(sample, lines, strict=True):
        label, score_, _ = line.split("\t")
        assert table["predicted_label"][row].as_py() == label
        assert table["predicted_score"][row].as_py() == pytest.approx(float(score_), abs=1e-4)
    assert (summary.items, summary.skipped, summary.counts.rejected) == (8, 0, 0)
    assert summary.counts.rows == 2 * rows == sum(summary.counts.labels.values())
    metadata = pq.read_schema(part_files(tmp_path / "out")[0]).metadata
    assert json.loads(metadata[b"pipework.engine"])["name"] == "onnx"
    assert json.loads(metadata[b"pipework.proof"])["passed"] is True


def test_a_finished_job_is_skipped_without_a_write(run, files, tmp_path):
    first = score(run, files, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    second = score(run, files, tmp_path / "out")
    assert (second.items, second.skipped, second.counts) == (8, 8, first.counts)
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"x")])
@pytest.mark.parametrize("name", ["parts/part-000002.parquet", "finished/part-000002.json"])
def test_an_item_whose_files_are_gone_or_changed_is_scored_again(
    run, files, tmp_path, damage, name
):
    score(run, files, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    damage(tmp_path / "out" / name)
    assert score(run, files, tmp_path / "out").skipped == 7
    assert snapshot(tmp_path / "out") == before


def run_job(run: Path, files: Path, out: Path, most_bytes: int = 0) -> None:
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    score(run, files, out)


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_job_that_is_killed_continues(deep_run, files, whole, tmp_path, kills, monkeypatch):
    out, rng = tmp_path / "out", random.Random(3)
    for _ in range(kills):
        before = len(list(out.glob("*/*")))
        with ForkedProcess(run_job, deep_run, files, out) as process:
            # From a random moment after its first write: scoring, a rename, or an entry.
            while process.poll() is None and len(list(out.glob("*/*"))) <= before:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            process.wait()
        finished = {path.stem for path in out.glob("finished/*.json")}
        complete = {name: part for name, part in parts(out).items() if Path(name).stem in finished}
        assert complete.items() <= whole.items()
    monkeypatch.setattr(job_folder, "UNLOCKED_S", 0)
    score(deep_run, files, out)
    assert parts(out) == whole
    assert list((out / "temporary").iterdir()) == []


def test_two_shards_at_once_write_what_one_process_writes(deep_run, files, whole, tmp_path):
    out = tmp_path / "out"
    start = partial(
        ForkedProcess, partial(score, shard="auto"), deep_run, files, out, WORLD_SIZE="2"
    )
    with start(RANK="0") as first, start(RANK="1") as second:
        assert (first.wait(), second.wait()) == (0, 0)
    assert parts(out) == whole
    assert score(deep_run, files, out, shard="2/3").skipped == 3


def test_a_shard_of_a_cluster_scores_what_slower_shards_have_left(
    run, files, tmp_path, monkeypatch
):
    words = ("predict", run, "--in", files, "--out", tmp_path / "out", "--shard", "auto")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    fast = pipe(*words).stdout
    monkeypatch.setenv("RANK", "1")
    slow = pipe(*words).stdout
    assert "4 work items (0 were finished before), and 4 of other shards\n" in fast
    assert "4 work items (4 were finished before)\nfinished work items of the job: 8 of 8" in slow
    score(run, files, tmp_path / "whole")
    assert parts(tmp_path / "out") == parts(tmp_path / "whole")


def test_a_shard_reports_the_finished_work_items_of_the_job(run, files, tmp_path):
    words = ("predict", run, "--in", files, "--out", tmp_path / "out", "--shard")
    first, last, empty = (pipe(*words, shard).stdout for shard in ("1/2", "2/2", "9/9"))
    line = "finished work items of the job: "
    assert f"4 work items (0 were finished before)\n{line}4 of 8\n" in first
    assert f"{line}8 of 8\n" in last
    assert f"{line}8 of 8\nthis shard has no work item: there are more shards" in empty
    assert line not in pipe(*words, "1/1").stdout


def test_a_full_disk_loses_nothing(deep_run, files, whole, tmp_path):
    with ForkedProcess(run_job, deep_run, files, tmp_path / "out", 20_000) as process:
        assert process.wait() != 0
    finished = len(list((tmp_path / "out").glob("finished/*")))
    assert 0 < finished < len(whole)
    assert score(deep_run, files, tmp_path / "out").skipped == finished
    assert parts(tmp_path / "out") == whole


def test_another_job_is_refused_and_changes_nothing(run, multi_run, files, tmp_path):
    inputs, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(files, inputs)
    score(run, inputs, out, keep=["id"])
    before = snapshot(out)
    again = partial(score, run, inputs, out, keep=["id"])
    with pytest.raises(ConfigError, match=r"started with keep id, found text"):
        again(keep=["text"])
    with pytest.raises(ConfigError, match=r"task 3 labels: .*, found 3 labels .several"):
        score(multi_run, inputs, out, keep=["id"])
    (inputs / "file2.parquet").write_bytes((inputs / "file1.parquet").read_bytes())
    with pytest.raises(ConfigError, match=r"file2.parquet is not one of the files with which"):
        again()
    (inputs / "file2.parquet").unlink()
    content = (inputs / "file1.parquet").read_bytes()
    (inputs / "file1.parquet").unlink()
    with pytest.raises(ConfigError, match=r"file1.parquet is missing"):
        again()
    write_parquet(inputs / "file1.parquet", GROUPS, 7)
    with pytest.raises(ConfigError, match=r"file1.parquet has changed since the job was started"):
        again()
    changed = bytearray(content)
    changed[50] ^= 1  # not in the footer
    (inputs / "file1.parquet").write_bytes(changed)
    with pytest.raises(ChangedFileError, match=r"file1.parquet has changed since part-000004 was"):
        again()
    assert snapshot(out) == before
    (inputs / "file1.parquet").write_bytes(content)
    assert again().skipped == 8


def test_a_job_continues_with_its_engine_if_the_default_changes(run, files, tmp_path):
    out = tmp_path / "out"
    score(run, files, out, shard="1/2")
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    manifest = json.loads((copy / "manifest.json").read_text())
    other = {**manifest["engines"][0], "name": "other", "speed": SPEED}
    manifest["engines"] = [other, *manifest["engines"]]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert score(copy, files, out).skipped == 4
    with pytest.raises(ConfigError, match=r"with engine onnx, found other$") as caught:
        score(copy, files, out, engine="other")
    assert caught.value.hint == "add --engine onnx, or use another --out folder"


def test_a_file_system_without_hard_links_holds_a_job(run, files, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("os.link", refuse)
    assert score(run, files, tmp_path / "out").skipped == 0
    assert (tmp_path / "out" / "plan.json").is_file()
    assert score(run, files, tmp_path / "out").skipped == 8
    assert list((tmp_path / "out" / "temporary").iterdir()) == []
    with pytest.raises(ConfigError, match=r"started with keep id, text, when, found id"):
        score(run, files, tmp_path / "out", keep=["id"])


def objects(store, folder: str) -> dict[str, bytes]:
    """Return the content of the objects in a folder of a store."""
    return {path.removeprefix(folder): store.cat(path) for path in store.find(folder)}


def test_a_job_in_an_object_store_has_the_files_of_a_local_job(run, files, tmp_path, store):
    (tmp_path / "in").mkdir()
    shutil.copy(files / "file0.parquet", tmp_path / "in")
    (tmp_path / "in" / "rows.csv").write_text("id,text,when\n1,rain,2\n2\n")
    to = partial(score, run, tmp_path / "in", columns="text=text", keep=["text"])
    local = to(tmp_path / "out")
    first, again = to("memory://bucket/out", shard="1/2"), to("memory://bucket/out")
    assert (first.items, again.items, again.skipped) == (3, 5, 3)
    assert (again.counts, again.counts.rejected) == (local.counts, local.counts.rejected)
    expected = snapshot(tmp_path / "out")
    assert {name.partition("/")[0] for name in expected} == {
        "parts",
        "finished",
        "rejects",
        "plan.json",
    }
    assert objects(store, "/bucket/out/") == expected


def test_a_finished_job_in_an_object_store_downloads_no_part(run, files, store, monkeypatch):
    score(run, files, "memory://bucket/out")
    read, opened = type(store).cat_file, list[str]()

    def cat_file(self, path, **options):
        opened.append(path)
        return read(self, path, **options)

    monkeypatch.setattr(type(store), "cat_file", cat_file)
    assert score(run, files, "memory://bucket/out").skipped == 8
    assert len(opened) > 8
    assert [path for path in opened if "/parts/" in path] == []
    before = objects(store, "/bucket/out/")
    store.rm("/bucket/out/parts/part-000002.parquet")
    store.pipe("/bucket/out/parts/part-000003.parquet", b"x")
    store.pipe("/bucket/out/finished/part-000004.json", b"{")
    assert score(run, files, "memory://bucket/out").skipped == 5
    assert objects(store, "/bucket/out/") == before


def test_a_finished_job_downloads_no_input_that_has_its_version(
    run, files, tmp_path, store, monkeypatch
):
    store.put(f"{files}/", "/bucket/rows/", recursive=True)
    first = score(run, "memory://bucket/rows", tmp_path / "out")
    read, ranges = StoredFile.read, list[int]()

    def count(self, start, end):
        ranges.append(start)
        return read(self, start, end)

    monkeypatch.setattr(StoredFile, "read", count)
    assert score(run, "memory://bucket/rows", tmp_path / "out").counts == first.counts
    assert ranges == []
    content = store.cat("/bucket/rows/file1.parquet")
    store.pipe("/bucket/rows/file1.parquet", content)  # the same bytes, at another time
    assert score(run, "memory://bucket/rows", tmp_path / "out").skipped == 8
    assert len(ranges) == 4
    changed = bytearray(content)
    changed[50] ^= 1  # not in the footer
    store.pipe("/bucket/rows/file1.parquet", bytes(changed))
    with pytest.raises(ChangedFileError, match=r"file1.parquet has changed since part-000004 was"):
        score(run, "memory://bucket/rows", tmp_path / "out")


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_the_bytes_of_an_item_are_read_once(run, tmp_path, monkeypatch, name):
    path = tmp_path / name
    if name == "rows.csv":
        path.write_text("text\n" + "rain\n" * 20_000)
    else:
        write_parquet(path, [2000] * 4)
    items, reads = list[WorkItem](), list[tuple[int, int]]()

    class Counted(io.FileIO):
        def read(self, size=-1):
            start = self.tell()
            data = super().read(size)
            reads.append((start, start + len(data)))
            return data

    score_item = job.BulkJob.score

    def score_counted(self, item, progress):
        items.append(item)
        monkeypatch.setattr(StoredFile, "open", lambda stored: Counted(stored.path))
        return score_item(self, item, progress)

    monkeypatch.setattr(job.BulkJob, "score", score_counted)
    score(run, path, tmp_path / "out", columns="text=text")
    # The footer of parquet is read with the 64 KiB before it.
    tail = path.stat().st_size - 2**16 if name == "rows.parquet" else 2**20
    checked = [item for item in items if item.end <= tail]
    assert checked
    for item in checked:
        inside = [min(end, item.end) - max(start, item.start) for start, end in reads]
        assert sum(size for size in inside if size > 0) == item.end - item.start


def test_another_job_in_an_object_store_is_refused(run, files, store):
    score(run, files, "memory://bucket/out", keep=["id"])
    before = objects(store, "/bucket/")
    with pytest.raises(ConfigError, match=r"memory://bucket/out: .* started with keep id, found"):
        score(run, files, "memory://bucket/out", keep=["text"])
    with pytest.raises(ConfigError, match=r"memory://bucket holds files and no plan.json"):
        score(run, files, "memory://bucket")
    assert objects(store, "/bucket/") == before


def test_the_parts_below_the_input_in_an_object_store_are_no_input(run, files, store):
    store.put(f"{files}/", "/bucket/rows/", recursive=True)
    assert score(run, "memory://bucket/rows", "memory://bucket/rows/out").items == 8
    assert score(run, "memory://bucket/rows", "memory://bucket/rows/out").skipped == 8


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PermissionError(errno.EACCES, "Access Denied"), 2),
        (OSError(errno.EBUSY, "Slow Down"), 75),
        (ConnectionResetError("reset by peer"), 75),
    ],
)
def test_a_store_that_fails_ends_the_job_and_it_continues(
    run, files, store, monkeypatch, failure, code
):
    score(run, files, "memory://bucket/whole")
    expected = objects(store, "/bucket/whole/")
    put, uploads = type(store).put_file, list[str]()

    def put_file(self, local, target, **options):
        uploads.append(target)
        if len(uploads) > 4:
            raise failure
        put(self, local, target, **options)

    monkeypatch.setattr(type(store), "put_file", put_file)
    reason = failure.strerror or str(failure)
    with pytest.raises(PipeError, match=f"^--out memory://bucket/out: {reason}$") as caught:
        score(run, files, "memory://bucket/out")
    assert caught.value.exit_code == code
    assert len(uploads) == 5  # no other item is tried
    monkeypatch.undo()
    assert score(run, files, "memory://bucket/out").skipped == 1
    assert objects(store, "/bucket/out/") == expected


def test_a_store_that_fails_while_files_are_planned_is_transient(run, tmp_path, monkeypatch):
    (tmp_path / "in.csv").write_text("text\nrain\n")

    def fail(*_: object):
        raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    monkeypatch.setattr("pipework.serve.bulk.input_files.Records.blocks", fail)
    with pytest.raises(PipeError, match="the job has stopped: reset by peer") as caught:
        score(run, tmp_path / "in.csv", tmp_path / "out")
    assert caught.value.exit_code == 75


def test_a_folder_with_other_files_is_refused(run, files, tmp_path):
    (tmp_path / "notes.md").touch()
    with pytest.raises(ConfigError, match=r"holds files and no plan.json: expected a new folder"):
        score(run, files, tmp_path)


def test_parts_of_another_plan_are_not_mixed_in(run, multi_run, files, tmp_path):
    out = tmp_path / "out"
    score(run, files, out)
    plan = (out / "plan.json").read_bytes()
    (out / "plan.json").unlink()
    with pytest.raises(ConfigError, match=r"out holds files and no plan.json"):
        score(multi_run, files, out)
    score(multi_run, files, tmp_path / "other")
    (out / "plan.json").write_bytes((tmp_path / "other" / "plan.json").read_bytes())
    with pytest.raises(ConfigError, match=r"part-000000.json belongs to a job with another plan"):
        score(multi_run, files, out)
    (out / "plan.json").write_bytes(plan)
    assert score(run, files, out).skipped == 8


def test_a_file_that_changes_during_the_job_is_not_scored(run, tmp_path, monkeypatch):
    path = tmp_path / "in.parquet"
    write_parquet(path, [40])
    windows = RowReader.table_rows

    def change(*arguments):
        yield from windows(*arguments)
        write_parquet(path, [40], seed=9)

    monkeypatch.setattr(RowReader, "table_rows", change)
    (failure,) = score(run, path, tmp_path / "out").failures
    assert "in.parquet has changed since the job was planned" in str(failure)
    assert parts(tmp_path / "out") == {}


def test_two_processes_may_score_the_same_item(deep_run, files, whole, tmp_path):
    out = tmp_path / "out"
    start = partial(ForkedProcess, score, deep_run, files, out)
    with start() as first, start() as second:
        assert (first.wait(), second.wait()) == (0, 0)
    assert parts(out) == whole
    assert score(deep_run, files, out).skipped == 8


def test_columns_of_several_types_are_refused(run, tmp_path):
    (tmp_path / "in").mkdir()
    for name, values in (("a", [1]), ("b", ["1"])):
        pq.write_table(pa.table({"text": ["rain"], "id": values}), tmp_path / f"in/{name}.parquet")
    message = r"column 'id' has several types: int64 in a.parquet, string in b.parquet"
    with pytest.raises(ConfigError, match=message):
        score(run, tmp_path / "in", tmp_path / "out")
    assert score(run, tmp_path / "in", tmp_path / "out", keep=["text", "text"]).counts.rows == 2


def test_types_are_widened_and_the_columns_of_paths_are_copied(run, tmp_path):
    first = {
        "text": pa.array(["rain", None, "sun"], pa.string_view()),
        "id": pa.array([1, 2, 3], pa.int32()),
        "tag": pa.array(["x", "y", "x"]).dictionary_encode(),
        "when": pa.array([1, 2, 3], pa.timestamp("s")),
        "none": pa.nulls(3),
    }
    second = {
        "text": pa.array(["goal"], pa.large_string()),
        "id": pa.array([2**40], pa.int64()),
        "tag": pa.array(["z"]),
        "when": pa.array([4], pa.timestamp("us")),
        "none": pa.array([0.5]),
    }
    for name, columns in (("day=1/a", first), ("day=2/b", second)):
        path = tmp_path / f"in/year=2024/{name}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table(columns), path)
    assert score(run, tmp_path / "in", tmp_path / "out").counts.rejected == 1
    table = pq.read_table(tmp_path / "out" / "parts")
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types == {
        "text": "string",
        "id": "int64",
        "tag": "string",
        "when": "timestamp[us]",
        "none": "double",
        "year": "string",
        "day": "string",
        "source_file": "string",
        "source_row": "int64",
        "predicted_label": "string",
        "predicted_score": "float",
        "truncated": "bool",
    }
    assert table["id"].to_pylist() == [1, 3, 2**40]
    assert table["tag"].to_pylist() == ["x", "x", "z"]
    assert table["day"].to_pylist() == ["1", "1", "2"]
    assert table["year"].to_pylist() == ["2024"] * 3
    assert table["source_file"].to_pylist()[2] == "year=2024/day=2/b.parquet"


def test_the_columns_of_the_paths_of_text_files_are_copied(run, tmp_path):
    for folder in ("a%3Ab=en%2FUS", "a%3Ab=__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / f"in/{folder}/a.csv"
        path.parent.mkdir(parents=True)
        path.write_text("text,id\nrain,1\n")
    score(run, tmp_path / "in", tmp_path / "out", keep=["a:b", "id"], columns="text=text")
    table = pq.read_table(tmp_path / "out" / "parts")
    assert sorted(table["a:b"].to_pylist(), key=str) == [None, "en/US"]
    assert table["id"].to_pylist() == ["1", "1"]


def test_a_file_that_becomes_shorter_while_it_is_scored_is_one_line(run, tmp_path, monkeypatch):
    path = tmp_path / "in.parquet"
    write_parquet(path, [5, 5, 5])
    read = StoredFile.read

    def shorten(self, start, end):
        content = read(self, start, end)
        write_parquet(path, [5])
        return content

    monkeypatch.setattr(StoredFile, "read", shorten)
    (failure,) = score(run, path, tmp_path / "out").failures
    assert "in.parquet has changed since the job was planned" in str(failure)
    assert str(failure).startswith("2 of 3 work items cannot be read; first: ")
    assert "\n" not in str(failure)


def test_a_url_without_its_slashes_is_refused(run, files):
    with pytest.raises(ConfigError, match=r"--out s3:/bucket: expected a path, or a URL such as"):
        score(run, files, Path("s3://bucket"))


def test_a_changed_text_file_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "ITEM_BYTES", 20)
    (tmp_path / "in.txt").write_text("rain\nsun\nwind\ngoal\nteam\nmatch\n")
    score(run, tmp_path / "in.txt", tmp_path / "out", shard="1/2")
    (tmp_path / "in.txt").write_text("rain\nsun\nwind\ngoal\nteam\nMATCH\n")
    with pytest.raises(ConfigError, match=r"in.txt has changed since the job was started"):
        score(run, tmp_path / "in.txt", tmp_path / "out")


def test_a_damaged_row_group_is_reported_and_the_others_are_scored(run, files, tmp_path):
    inputs, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(files, inputs)
    path = inputs / "file0.parquet"
    content = path.read_bytes()
    (stored,) = stored_files.find_files(str(path))
    item = input_files.plan_file(stored, Source(path=path, reading=Reading(text="text")), 0).items[
        1
    ]
    damaged = bytearray(content)
    damaged[item.start : item.start + 400] = os.urandom(400)
    path.write_bytes(damaged)
    (failure,) = score(run, inputs, out).failures
    message = "1 of 8 work items cannot be read; first: file0.parquet, row group 1 cannot be read"
    assert str(failure).startswith(message)
    assert len(parts(out)) == 7
    path.write_bytes(content)
    assert score(run, inputs, out).skipped == 7
    assert len(parts(out)) == 8


@pytest.mark.parametrize(
    ("empty", "row"),
    [
        ("a.csv", "text,id\nrain,z"),
        ("a.jsonl", '{"text": "rain", "id": "z"}'),
        ("a.txt", "text\tid\nrain\tz"),
        ("z.csv", "text,id\nrain,z"),
    ],
)
def test_an_empty_file_is_reported_and_the_others_are_scored(run, tmp_path, empty, row):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / empty).touch()
    (tmp_path / "in" / "b.csv").write_text("text,id\nrain,x\ngoal,y\n")
    (tmp_path / "in" / "c.csv").write_text("text,id\n")
    again = partial(score, run, tmp_path / "in", tmp_path / "out", columns="text=text")
    (failure,) = again().failures
    assert str(failure) == f"1 of 3 files were not scored; first: {empty} is empty"
    assert failure.exit_code == 3
    table = pq.read_table(tmp_path / "out" / "parts")
    assert table["id"].to_pylist() == ["x", "y"]
    assert table["predicted_label"].to_pylist() == ["weather", "sport"]
    (tmp_path / "in" / empty).write_text(row)
    with pytest.raises(ConfigError, match=f"{empty} has changed since the job was started"):
        again()


def test_a_damaged_file_is_reported_by_one_shard_after_its_summary(run, tmp_path):
    inputs, out = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    (inputs / "damaged.parquet").write_bytes(b"PAR1" + os.urandom(400))
    rows = pa.table({"text": ["rain", None]})
    pq.write_table(rows, inputs / "rows.parquet", row_group_size=2)
    words = ("predict", run, "--in", inputs, "--out", out, "--max-rejects")
    damaged = "1 of 2 files were not scored; first: damaged.parquet cannot be read"
    rejected = "1 row (50.0%) could not be read, more than --max-rejects"
    first, second = (pipe(*words, 0.9, "--shard", shard) for shard in ("1/2", "2/2"))
    assert (first.returncode, second.returncode) == (3, 0)
    assert f"error: {damaged}" in first.stderr
    assert "damaged" not in second.stderr
    check = pipe(*words, 0.1)
    assert check.returncode == 3
    for done in (first, second, check):
        assert "scored: " in done.stdout
    assert f"error: {damaged}" in check.stderr
    assert f"; {rejected} 0.1; first: rows.parquet:2: " in check.stderr
    (part,) = part_files(out)
    assert pq.read_table(part)["source_file"].to_pylist() == ["rows.parquet"]


def test_files_that_are_all_empty_are_refused(run, tmp_path):
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match="--in: no file can be scored") as caught:
        score(run, tmp_path / "*.csv", tmp_path / "out")
    assert caught.value.hint == "the first: a.csv is empty"


def test_a_second_column_for_a_model_of_texts_is_refused_before_the_job_starts(run, tmp_path):
    (tmp_path / "in.csv").write_text("a,b\nrain,sun\n")
    message = "found text_pair, but this model classifies single texts"
    with pytest.raises(DataError, match=message):
        score(run, tmp_path / "in.csv", tmp_path / "out", columns="text=a,text_pair=b")
    assert not (tmp_path / "out").exists()


def test_rows_that_cannot_be_read_are_set_aside(run, tmp_path):
    table = pa.table({"text": ["rain", None, "goal"], "id": ["a", "b", "c"]})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    (tmp_path / "in" / "b.csv").write_bytes(b"id,text\nd,sun\ne\nf,\xff\ng,bank\n")
    summary = score(run, tmp_path / "in", tmp_path / "out", columns="text=text", keep=["id"])
    assert (summary.counts.rows, summary.counts.rejected) == (4, 3)
    rejects = sorted((tmp_path / "out" / "rejects").glob("*.jsonl"))
    lines = [json.loads(line) for path in rejects for line in path.read_text().splitlines()]
    assert [(line["file"], line["row"]) for line in lines] == [
        ("a.parquet", 2),
        ("b.csv", 3),
        ("b.csv", 4),
    ]
    assert lines[1]["reason"] == "expected 2 columns, found 1"
    table = pa.concat_tables(pq.read_table(path) for path in part_files(tmp_path / "out"))
    assert table["id"].to_pylist() == ["a", "c", "d", "g"]
    assert table["source_row"].to_pylist() == [1, 3, 2, 5]
    assert table["predicted_label"].to_pylist() == ["weather", "sport", "weather", "money"]


def test_a_job_in_which_most_rows_are_rejected_fails(run, tmp_path):
    (tmp_path / "in.csv").write_bytes(b"text\n" + "Grüße\n".encode("cp1252") * 3 + b"rain\n")
    words = ["predict", run, "--in", tmp_path / "in.csv", "--columns", "text=text"]
    done = pipe(*words, "--out", tmp_path / "out")
    assert done.returncode == 3
    assert "scored: " in done.stdout
    first = "first: in.csv:2: not UTF-8 (byte "
    assert f"error: 3 rows (75.0%) could not be read, more than --max-rejects 0.1; {first}" in (
        done.stderr
    )
    assert "convert the files to UTF-8" in done.stderr
    assert pipe(*words, "--out", tmp_path / "out", "--max-rejects", "0.8").returncode == 0


def test_a_column_of_another_type_is_named_and_an_input_without_rows(run, tmp_path):
    lists, none = pa.array([["rain"], ["sun"]]), pa.array([], pa.string())
    for name, column in (("list", lists), ("none", none)):
        pq.write_table(pa.table({"text": column}), tmp_path / f"{name}.parquet")
    words = ["predict", run, "--columns", "text=text", "--in"]
    done = pipe(*words, tmp_path / "list.parquet", "--out", tmp_path / "lists")
    assert done.returncode == 3
    assert "first: list.parquet:1: expected a string at 'text', found list\n" in done.stderr
    assert "UTF-8" not in done.stderr
    assert (
        "found list" in pipe(*words, tmp_path / "list.parquet", "--out", tmp_path / "lists").stderr
    )
    done = pipe(*words, tmp_path / "none.parquet", "--out", tmp_path / "none")
    assert done.returncode == 0
    assert done.stdout.endswith("the input has no rows\n")


def test_a_signal_ends_the_command_with_one_line(deep_run, files, tmp_path):
    for number in (signal.SIGTERM, signal.SIGINT):
        out = tmp_path / number.name
        with ForkedPipe("predict", deep_run, "--in", files, "--out", out) as process:
            while process.poll() is None and not list(out.glob("*/*")):
                time.sleep(0.001)
            process.send_signal(number)
            result = process.finish()
        assert result.returncode == 128 + number
        assert "error: the command was stopped\nhint: the same command continues" in result.stderr
        assert "Traceback" not in result.stderr


def test_the_command_prints_a_summary(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("text,n\nrain,1\ngoal,2\nsun,3\nbroken\n")
    words = ("predict", run, "--in", "in.csv", "--columns", "text=text", "--out", "out")
    result = pipe(*words, "--keep", "n", "--max-rejects", 0.5)
    assert result.returncode == 0, result.stderr
    assert "scored: out, 3 rows in 1 work item (0 were finished before)" in result.stdout
    assert "1 row could not be read: out/rejects" in result.stdout
    assert "weather" in result.stdout
    for wrong, message in (
        ((run, "a.csv", "--out", "out"), f"and no other argument, found {run}, a.csv\nhint: pipe"),
        (("--out", "out"), "expected a run folder and no other argument, found none"),
        ((run,), "--in needs --out FOLDER"),
        ((run, "--out", "out", "--url", "http://x"), "--in: expected no --url\n"),
        ((run, "--out", "out", "--file", "in.csv"), "--in: expected no --file\n"),
        ((run, "--out", "out", "--raw-csv"), "--in: expected no --raw-csv\n"),
    ):
        result = pipe("predict", *wrong, "--in", "in.csv")
        assert result.returncode == 2
        assert message in result.stderr
    for option in ("--keep=n", "--shard=1/2", "--on=ray", "--max-rejects=0.1", "--allow-skipped"):
        result = pipe("predict", run, "rain", option)
        assert result.returncode == 2
        assert f"error: {option.partition('=')[0]} needs --in\n" in result.stderr
    result = pipe(*words, "--keep", "predicted_label")
    assert result.returncode == 2


@pytest.mark.usefixtures("store")
def test_the_command_prints_the_url_of_the_output_without_its_password(run, tmp_path):
    (tmp_path / "in.csv").write_text("text,n\nrain,1\nbroken\n")
    url = "memory://user:secret@bucket/out"
    words = ("predict", run, "--in", tmp_path / "in.csv", "--columns", "text=text")
    result = pipe(*words, "--out", url, "--max-rejects", 0.5)
    assert result.returncode == 0, result.stderr
    assert "scored: memory://***@bucket/out, 1 row in 1 work item (0 were" in result.stdout
    assert "1 row could not be read: memory://***@bucket/out/rejects" in result.stdout
    result = pipe(*words, "--out", url, "--keep", "n")
    assert result.returncode == 2
    assert "error: memory://***@bucket/out: the job was started with keep" in result.stderr
    assert "secret" not in result.stdout + result.stderr


def test_both_forms_of_predict_have_the_scores_in_the_order_of_the_labels(run, tmp_path):
    file, out, folder = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "out"
    file.write_text("text\nrain\n")
    words = ("predict", run, "--columns", "text=text", "--scores")
    assert pipe(*words, "--file", file, "--out", out).returncode == 0
    assert pipe(*words, "--in", file, "--out", folder).returncode == 0
    expected = ["score_weather", "score_sport", "score_money"]
    assert out.read_text().splitlines()[0].split(",")[-3:] == expected
    names = pq.read_table(folder / "parts").column_names
    assert [name for name in names if name.startswith("score_")] == expected
