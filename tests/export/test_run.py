import pytest

from export.checkpoint2onnx import checkpoint_to_onnx
from export.run import export
from pipework.errors import DataError, RunFolderError
from pipework.manifest import read_manifest, verify_files
from pipework.progress import Silent
from pipework.settings import dump_settings
from serve.engines import open_proven
from train.config import run_config


class Noting(Silent):
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def engine_files(run):
    return sorted(path.name for path in (run / "engines").rglob("*") if path.is_file())


def test_the_record_holds_what_lies_on_disk(exported_run):
    (engine,) = read_manifest(exported_run).engines
    verify_files(exported_run, engine.files)
    assert engine_files(exported_run) == [engine.files[0].path.rpartition("/")[2]]
    assert engine.built_with.keys() >= {"torch", "transformers", "onnx", "exporter"}


def test_a_second_export_replaces_the_first_and_leaves_one_file(proven):
    def other(run, manifest, path):
        checkpoint_to_onnx(run, manifest, path)
        with path.open("ab") as stream:  # a field that no reader knows: other bytes, same graph
            stream.write(b"\xf2\x3f\x01x")

    before = engine_files(proven)
    export(proven, Silent(), other)
    assert engine_files(proven) != before
    assert len(engine_files(proven)) == len(read_manifest(proven).engines) == 1
    open_proven(proven, read_manifest(proven)).close()


def test_an_interrupted_export_keeps_the_engine_that_was_there(proven):
    def interrupted(_run, _manifest, path):
        path.write_bytes(b"half a graph")
        raise KeyboardInterrupt

    manifest, files = read_manifest(proven), engine_files(proven)
    with pytest.raises(KeyboardInterrupt):
        export(proven, Silent(), interrupted)
    assert (read_manifest(proven), engine_files(proven)) == (manifest, files)


def test_what_a_killed_export_left_is_told_and_removed(run):
    folder = run / "engines" / "onnx-fp32"
    folder.mkdir(parents=True)
    (folder / "model.partial").write_bytes(b"half a graph")
    (folder / "model-0123456789ab.onnx").write_bytes(b"proven, but not recorded")
    noting = Noting()
    export(run, noting)
    left = [line for line in noting.lines if "left from an unfinished export" in line]
    assert len(left) == 2
    assert len(engine_files(run)) == 1


@pytest.mark.parametrize("name", ["checkpoint/model.safetensors", "tokenizer.json"])
def test_a_changed_run_folder_is_refused(run, name):
    with (run / name).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=f"{name} changed"):
        export(run, Silent())


def test_a_dev_file_that_went_away_is_named(run):
    config = run_config(run)
    moved = config.data.model_copy(update={"root": run / "gone"})
    text = dump_settings(config.model_copy(update={"data": moved}))
    (run / "config.toml").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"gone/dev\.tsv cannot be read"):
        export(run, Silent())
