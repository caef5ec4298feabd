"""After `--to auto` the default engine and the fastest are kept."""

import shutil

from pipework.export.ranking import keep_best
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import LockedRun, read_manifest
from tests.commands import pipe
from tests.conftest import Noting


def with_engines(exported_run, folder, *speeds, variation=0.0):
    """A copy of a run with several engines, the fastest first; the first changes predictions."""
    run = shutil.copytree(exported_run, folder)
    manifest = read_manifest(run)
    (record,) = manifest.engines
    engines = []
    for number, rate in enumerate(speeds):
        name = f"engine-{number}"
        shutil.copytree(run / "engines" / record.name, run / "engines" / name)
        files = [
            file.model_copy(update={"path": file.path.replace(record.name, name)})
            for file in record.files
        ]
        change = {"max_change": 0.5 if number == 0 else 0.0}
        speed = record.speed.model_copy(update={"texts_per_s": rate, "variation": variation})
        parity = record.parity.model_copy(update=change)
        update = {"name": name, "files": tuple(files), "speed": speed, "parity": parity}
        engines.append(record.model_copy(update=update))
    shutil.rmtree(run / "engines" / record.name)
    with LockedRun.open(run) as locked:
        locked.record_engines(engines)
    return run


def kept(run, keep):
    noting = Noting()
    with LockedRun.open(run) as locked:
        records = keep_best(locked, locked.manifest.engines, keep, noting)
    assert [one.name for one in read_manifest(run).engines] == [one.name for one in records]
    for record in records:
        verify_files(run, record.files)
    names = sorted(path.name for path in (run / "engines").iterdir())
    assert names == sorted(one.name for one in records)
    return [one.name for one in records], noting.lines


def test_the_default_engine_and_the_fastest_are_kept(exported_run, tmp_path):
    run = with_engines(exported_run, tmp_path / "run", 400, 300, 200, 100)
    names, (line,) = kept(run, 2)
    assert names == ["engine-0", "engine-1"]  # the default is the second
    assert line.startswith("deleted slower engines (")
    assert line.endswith(" MB): engine-2, engine-3; --set keep=0 keeps them")
    assert kept(run, 1)[0] == ["engine-1"]


def test_all_engines_are_kept_if_there_are_few_or_the_speeds_are_unreliable(exported_run, tmp_path):
    run = with_engines(exported_run, tmp_path / "run", 400, 300, 200)
    assert kept(run, 0) == kept(run, 3) == (["engine-0", "engine-1", "engine-2"], [])
    unsteady = with_engines(exported_run, tmp_path / "unsteady", 400, 300, 200, variation=0.3)
    assert len(kept(unsteady, 1)[0]) == 3


def test_the_command_deletes_only_engines_of_its_own_export(exported_run, tmp_path):
    run = shutil.copytree(exported_run, tmp_path / "run")
    fast = ("--set", "speed_s=0.01", "--set", "keep=1", "--layout", "packed")
    done = pipe("export", run, "--to", "auto", "--precision", "fp32", *fast)
    assert done.returncode == 0, done.stderr
    names = {engine.name for engine in read_manifest(run).engines}
    assert "onnx-fp32" in names
    assert ("deleted slower engines" in done.stderr) == (len(names) == 2)
