"""The job folder: a file is complete or absent, on a disk and in an object store."""

import pickle
import sys
import tempfile
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipework.errors import ConfigError, MissingDependencyError, TransientError
from pipework.run_folder.files import FileRecord
from pipework.serve.bulk.job_folder import JobFolder, LocalFolder, StoreFolder, job_folder

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture(params=["path", "file URL", "store"])
def folder(request, tmp_path) -> JobFolder:
    out = {"path": "", "file URL": "file://"}.get(request.param)
    made = job_folder("memory://bucket/out" if out is None else f"{out}{tmp_path}/out")
    assert isinstance(made, StoreFolder if out is None else LocalFolder)
    return made


def write(folder: JobFolder, path: str, content: bytes, *, first: bool = False) -> FileRecord:
    with folder.new_file(path) as file:
        file.stream.write(content)
        return file.finish(first=first)


def test_a_file_is_absent_until_it_is_finished(folder):
    assert (folder.names(), folder.read("parts/a")) == (set(), None)
    folder.prepare(["parts"])
    with folder.new_file("parts/a") as file:
        file.stream.write(b"rain")
        assert folder.read("parts/a") is None
        record = file.finish()
    assert (record.path, record.size) == ("parts/a", 4)
    assert folder.read("parts/a") == b"rain"
    assert folder.names("parts") == {"a"}
    assert folder.names() - {"temporary"} == {"parts"}
    assert folder.holds(record)
    assert not folder.holds(record.model_copy(update={"path": "parts/b"}))
    write(folder, "parts/a", b"changed")
    assert not folder.holds(record)
    assert folder.read("parts/a") == b"changed"


def test_a_file_that_is_not_finished_leaves_nothing(folder):
    folder.prepare(["parts"])

    def stop() -> None:
        with folder.new_file("parts/a") as file:
            file.stream.write(b"rain")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert folder.names("parts") == folder.names("temporary") == set()


def test_the_first_process_writes_the_plan(folder):
    folder.prepare([])
    write(folder, "plan.json", b"first", first=True)
    write(folder, "plan.json", b"second", first=True)
    assert folder.read("plan.json") == b"first"


def test_a_disk_compares_the_digest_and_a_store_the_size(tmp_path):
    for folder, same_size in (
        (job_folder(str(tmp_path)), False),
        (job_folder("memory://b/out"), True),
    ):
        folder.prepare([])
        record = write(folder, "part", b"rain")
        write(folder, "part", b"goal")
        assert folder.holds(record) == same_size


@pytest.mark.parametrize("mode", [NotImplementedError, None])
def test_a_store_without_conditional_writes_keeps_a_plan(monkeypatch, store, mode):
    put = MemoryFileSystem.put_file

    def put_file(self, local, target, mode_="overwrite", **options):
        if options.pop("mode", mode_) == "create" and mode is not None:
            raise mode
        put(self, local, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
    folder = job_folder("memory://bucket/out")
    write(folder, "plan.json", b"first", first=True)
    assert store.cat("/bucket/out/plan.json") == b"first"
    write(folder, "plan.json", b"second", first=True)
    # A store that ignores the condition keeps the last plan, and both processes compare it.
    assert store.cat("/bucket/out/plan.json") == (b"second" if mode is None else b"first")


def test_a_temporary_file_of_a_store_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with job_folder("memory://bucket/out").new_file("part") as file:
        file.stream.write(b"rain")
        file.stream.flush()
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with (
        pytest.raises(ConfigError, match=r"^--out memory://bucket/out: No usable temporary"),
        job_folder("memory://bucket/out").new_file("part"),
    ):
        pass


def test_a_folder_covers_its_files_and_no_others(tmp_path, store):
    local, remote = job_folder(str(tmp_path / "out")), job_folder("memory://bucket/out/")
    disk = fsspec.filesystem("file")
    assert local.covers(disk, f"{tmp_path}/out/parts/a")
    assert not local.covers(disk, f"{tmp_path}/outer/a")
    assert not local.covers(store, f"{tmp_path}/out/parts/a")
    assert remote.covers(store, "/bucket/out/parts/a")
    assert not remote.covers(store, "/bucket/outer/a")
    assert not remote.covers(disk, "/bucket/out/parts/a")


def test_a_folder_can_be_sent_to_another_process(folder):
    folder.prepare([])
    write(folder, "plan.json", b"plan")
    sent = pickle.loads(pickle.dumps(folder))
    assert (sent.name, sent.read("plan.json")) == (folder.name, b"plan")


def test_an_empty_object_with_the_name_of_the_folder_is_no_content():
    class Listing(MemoryFileSystem):
        def ls(self, path, detail=True, **_):  # noqa: ARG002
            return [f"{path}/", f"{path}/parts"]

    assert StoreFolder("s3://bucket/out", Listing(), "bucket/out").names() == {"parts"}


def test_a_file_that_another_process_has_written_since_the_input_was_listed_is_found():
    class Cached(MemoryFileSystem):
        """As s3fs does: the information of a file is that of the listing of its folder."""

        listing: set[str] | None = None

        def ls(self, path, detail=True, **options):
            self.listing = {*super().ls(path, False, **options)}
            return super().ls(path, detail, **options)

        def info(self, path, **options):
            if self.listing is not None and path not in self.listing:
                raise FileNotFoundError(path)
            return super().info(path, **options)

        def invalidate_cache(self, path=None):  # noqa: ARG002
            self.listing = None

    folder = StoreFolder("s3://bucket/out", Cached(skip_instance_cache=True), "/bucket/out")
    write(folder, "parts/a", b"rain")
    folder.names("parts")
    folder.prepare([])
    record = write(job_folder("memory://bucket/out"), "parts/b", b"sun")
    assert folder.holds(record)


@pytest.mark.parametrize(
    ("out", "message", "hint"),
    [
        ("s3:/bucket", "--out s3:/bucket: expected a path, or a URL such as", "write // after"),
        ("memory://", "--out memory://: expected a folder of a bucket", "s3://BUCKET/FOLDER"),
        ("nothing://x/y", "--out nothing://x/y: Protocol not known: nothing", "such as s3://"),
    ],
)
def test_wrong_urls_are_reported(out, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        job_folder(out)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s3://bucket/out", "pip install 'pipework[s3]'"),
        ("gs://bucket/out", "pip install 'pipework[gcs]'"),
        ("abfs://bucket/out", "install the package for this kind of URL"),
    ],
)
def test_the_package_of_an_object_store_is_named(monkeypatch, url, hint):
    for name in ("s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=f"--out {url}: .*nstall") as caught:
        job_folder(url)
    assert caught.value.hint == hint


def test_an_error_of_a_store_is_one_line_without_the_password(closed_port):
    folder = job_folder(f"http://user:secret@127.0.0.1:{closed_port}/out")
    for call in (folder.names, lambda: folder.read("plan.json"), lambda: write(folder, "a", b"x")):
        with pytest.raises(
            TransientError, match=r"--out http://\*\*\*@127.*: Connect call"
        ) as caught:
            call()
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.hint == "run the same command again: it continues"


def test_a_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = job_folder("out")
    monkeypatch.chdir("/")
    assert folder.name == str(tmp_path / "out")
    folder.prepare([])
    assert (tmp_path / "out" / "temporary").is_dir()
    assert Path(folder.name).is_dir()
