import json
import shutil

import pytest

from pipework.errors import RunFolderError
from pipework.run_folder.files import exclusive_lock
from pipework.run_folder.manifest import LockedRun, read_manifest, write_manifest
from pipework.tasks.kinds import Metric


def test_a_written_manifest_reads_back_equal(run):
    manifest = read_manifest(run)
    write_manifest(run, manifest)
    assert read_manifest(run) == manifest


def test_an_invalid_manifest_is_not_written(run):
    manifest = read_manifest(run)
    metrics = manifest.data.metrics["dev"]
    infinite = metrics.model_copy(update={"scores": {Metric.ACCURACY: float("inf")}})
    data = manifest.data.model_copy(update={"metrics": {"dev": infinite}})
    with pytest.raises(RunFolderError, match=r"metrics\.dev\.scores\.accuracy"):
        write_manifest(run, manifest.model_copy(update={"data": data}))
    assert read_manifest(run) == manifest


def test_a_locked_run_records_engines_and_cannot_be_locked_again(exported_run, tmp_path):
    run = shutil.copytree(exported_run, tmp_path / "run")
    with LockedRun.open(run) as locked:
        engines = locked.manifest.engines
        locked.record_engines(())
        assert locked.manifest.engines == read_manifest(run).engines == ()
        locked.record_engines(engines)
        with (
            pytest.raises(RunFolderError, match="is being written by another"),
            LockedRun.open(run),
        ):
            pass
    assert read_manifest(run) == locked.manifest == read_manifest(exported_run)


def test_a_missing_run_folder_is_reported_before_it_is_locked(tmp_path):
    for run, message in ((tmp_path, "holds no manifest"), (tmp_path / "none", "is not a folder")):
        with pytest.raises(RunFolderError, match=message), LockedRun.open(run):
            pass


def test_a_folder_without_manifest_is_unfinished(tmp_path):
    with pytest.raises(RunFolderError, match=r"holds no manifest\.json: not a run folder"):
        read_manifest(tmp_path)
    (tmp_path / "config.toml").touch()
    with pytest.raises(RunFolderError, match=r"manifest\.json: its training did not") as caught:
        read_manifest(tmp_path)
    command = f"pipe train {tmp_path}/config.toml --out {tmp_path} --resume"
    assert caught.value.hint == f"continue it: {command}"
    with pytest.raises(RunFolderError, match="is not a folder"):
        read_manifest(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["task"].update(threshold=1), "task: Value error, threshold: Extra inputs"),
        (lambda m: m.pop("input"), "input: Field required"),
        (lambda m: m.update(schema_version=99), "has schema 99; this version reads 6"),
        (lambda m: m.update(schema_version=2), "has schema 2; this version reads 6"),
    ],
)
def test_an_invalid_manifest_is_reported_with_its_field(run, change, message):
    path = run / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RunFolderError, match=message):
        read_manifest(run)


def test_a_run_that_is_being_trained_is_not_called_unfinished(tmp_path):
    (tmp_path / "config.toml").touch()
    with exclusive_lock(tmp_path), pytest.raises(RunFolderError, match="it is being trained"):
        read_manifest(tmp_path)
    with pytest.raises(RunFolderError, match="its training did not finish"):
        read_manifest(tmp_path)
