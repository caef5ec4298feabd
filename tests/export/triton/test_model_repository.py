import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import ConfigError, RunFolderError
from pipework.export.config import Backend, TritonSettings
from pipework.export.inference import open_encoder
from pipework.export.triton.model_repository import Wanted, add_version
from pipework.export.triton.triton_config import FILE_NAME, from_text, text_config, to_text
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, TensorRt
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.scoring.reference_rows import FILE_NAME as KEPT_ROWS
from pipework.serve.engines import open_proven

TEXT = TritonSettings(name="topics")
BEHIND = TritonSettings(name="topics", backend=Backend.ONNXRUNTIME)


@pytest.fixture
def repository(tmp_path):
    return tmp_path / "models" / "repository"


def add(run, repository, settings=TEXT, wanted=None, progress=None):
    return add_version(run, repository, settings, wanted or Wanted(), progress or Silent())


def change(run, **changed):
    """Change the record of the run's engine, as if another export had written it."""
    manifest = read_manifest(run)
    (record,) = manifest.engines
    write_manifest(
        run, manifest.model_copy(update={"engines": (record.model_copy(update=changed),)})
    )


def changed_engine(run):
    """Give the run another engine: the same graph with other rows."""
    (record,) = read_manifest(run).engines
    (rows,) = (file.path for file in record.files if file.path.endswith(KEPT_ROWS))
    (run / rows).write_bytes(b"other rows")
    others = [file for file in record.files if file.path != rows]
    change(run, files=(*others, record_file(run, run / rows)))


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_version_is_a_run_folder_that_answers_as_the_run_does(exported_run, repository):
    added = add(exported_run, repository)
    assert added.new
    assert added.folder == repository / "topics" / "1"
    manifest = read_manifest(exported_run)
    encodings = open_encoder(added.folder, manifest).encode([Example(text="rain all week")])
    with (
        open_proven(exported_run, manifest) as expected,
        open_proven(added.folder, read_manifest(added.folder)) as found,
    ):
        assert np.array_equal(found.infer(encodings), expected.infer(encodings))
    files = {name for name in tree(added.folder) if not name.startswith("engines/")}
    assert files == {"model.py", "manifest.json", "tokenizer.json"}


def test_the_model_is_named_after_the_run_and_its_config_is_the_written_one(
    exported_run, repository
):
    manifest = read_manifest(exported_run)
    name = manifest.identity.name
    add(exported_run, repository, TritonSettings())
    config = from_text((repository / name / FILE_NAME).read_text())
    assert config == text_config(name, manifest, TritonSettings())
    warmup = config.model_warmup[0].inputs["text"].input_data_file
    assert (repository / name / "warmup" / warmup).is_file()


def test_another_engine_is_another_version_and_the_first_stays(proven, repository):
    add(proven, repository)
    before = tree(repository)
    changed_engine(proven)
    assert add(proven, repository).folder.name == "2"
    after = tree(repository)
    assert before.items() <= after.items()
    assert {name.split("/")[1] for name in after.keys() - before.keys()} == {"2"}


def test_the_same_engine_is_not_added_twice(proven, repository):
    first = add(proven, repository)
    before = tree(repository)
    again = add(proven, repository)
    assert (again.new, again.folder) == (False, first.folder)
    changed_engine(proven)
    add(proven, repository)
    assert not add(proven, repository).new
    assert before.items() <= tree(repository).items()


def test_a_config_that_was_edited_stays_and_what_it_lacks_is_told(proven, repository, noting):
    add(proven, repository)
    path = repository / "topics" / FILE_NAME
    config = from_text(path.read_text())
    config.instance_group[0].count = 3
    path.write_text("# mine\n" + to_text(config))
    changed_engine(proven)
    add(proven, repository, progress=noting)
    assert path.read_text().startswith("# mine\n")
    (note,) = noting.lines
    assert note == f"{path} stays as it is; the settings would change instance_group"


def test_another_model_of_that_name_is_refused(proven, repository):
    add(proven, repository)
    before = tree(repository)
    manifest = read_manifest(proven)
    task = manifest.task.model_copy(update={"labels": (*manifest.task.labels, "one more")})
    write_manifest(proven, manifest.model_copy(update={"task": task}))
    with pytest.raises(ConfigError, match="is of another model: output differ") as raised:
        add(proven, repository)
    assert raised.value.hint == "give this one a name: --set triton.name=NAME"
    assert tree(repository) == before


def test_a_model_of_other_labels_is_refused_though_there_are_as_many(proven, repository):
    add(proven, repository)
    manifest = read_manifest(proven)
    labels = manifest.task.labels
    assert (repository / "topics" / "labels.txt").read_text().splitlines() == [*labels]
    task = manifest.task.model_copy(update={"labels": labels[::-1]})
    write_manifest(proven, manifest.model_copy(update={"task": task}))
    with pytest.raises(ConfigError, match=r"is of another model: labels\.txt differ"):
        add(proven, repository)


def test_a_model_that_was_written_without_labels_takes_further_versions(proven, repository):
    add(proven, repository)
    (repository / "topics" / "labels.txt").unlink()
    path = repository / "topics" / FILE_NAME
    path.write_text(path.read_text().replace('  label_filename: "labels.txt"\n', ""))
    changed_engine(proven)
    assert add(proven, repository).folder.name == "2"


def test_a_folder_that_is_no_model_is_told(exported_run, repository):
    (repository / "topics").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"config\.pbtxt is not the config of a model"):
        add(exported_run, repository)


@pytest.mark.parametrize("settings", [TEXT, BEHIND])
def test_an_export_that_is_ended_leaves_nothing_that_triton_sees(
    proven, repository, monkeypatch, settings
):
    """The model that is asked comes whole before the one that asks it; the next try sweeps."""

    def ending_at(last):
        left = [*range(last)]

        def copy(source, target):
            assert {model.name for model in repository.iterdir()} <= {"topics-engine"}
            if not left:
                raise KeyboardInterrupt
            left.pop()
            target.write_bytes(source.read_bytes())

        return copy

    for copies in (0, 1):
        monkeypatch.setattr(
            "pipework.export.triton.model_repository.shutil.copyfile", ending_at(copies)
        )
        with pytest.raises(KeyboardInterrupt):
            add(proven, repository, settings)
    monkeypatch.undo()
    assert add(proven, repository, settings).new
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]
    assert all((model / FILE_NAME).is_file() for model in repository.iterdir())


def test_two_models_are_written_for_a_backend_and_their_versions_keep_step(proven, repository):
    add(proven, repository, BEHIND)
    (record,) = read_manifest(proven).engines
    graph = (proven / record.files[0].path).read_bytes()
    shutil.copytree(repository / "topics" / "1", repository / "topics" / "7")
    changed_engine(proven)
    assert add(proven, repository, BEHIND).folder == repository / "topics" / "8"
    files = tree(repository)
    assert files["topics-engine/8/model.onnx"] == graph
    assert "topics-engine/8/rows.npz" not in files
    (kept,) = [name for name in files if name.startswith("topics/8/engines")]
    assert kept.endswith("/rows.npz")  # by which the text model proves the other
    parameters = from_text(files["topics/config.pbtxt"].decode()).parameters
    assert parameters["tensor_model"].string_value == "topics-engine"


def test_a_run_without_a_proven_engine_is_refused_with_the_command_that_makes_one(
    run, proven, repository
):
    with pytest.raises(
        RunFolderError, match=r"no proven engine for Triton .* there: none"
    ) as empty:
        add(run, repository)
    assert empty.value.hint == f"make one first: pipe export {run} --to onnx"
    change(proven, parity=None, name="x")
    with pytest.raises(RunFolderError, match=r"engines there: x \(built, not run\)"):
        add(proven, repository)
    assert not repository.exists()


def test_an_engine_is_chosen_by_precision_and_layout(exported_run, repository):
    wanted = Wanted(precision=Precision.INT8, layout=Layout.PACKED)
    with pytest.raises(RunFolderError, match=r"for Triton \(python, int8, packed\)") as raised:
        add(exported_run, repository, wanted=wanted)
    assert raised.value.hint.endswith("--to onnx --precision int8 --layout packed")
    assert add(exported_run, repository, wanted=Wanted(precision=Precision.FP32)).new


def test_an_engine_whose_file_changed_is_refused(proven, repository):
    (record,) = read_manifest(proven).engines
    with (proven / record.files[0].path).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=r"model\.onnx changed"):
        add(proven, repository)


def test_an_engine_of_tensorrt_rtx_is_not_for_the_backend_of_tensorrt(proven, repository):
    rtx = TensorRt(flavour="tensorrt_rtx", version="1.7", target="one GPU", profiles=())
    change(proven, format=EngineFormat.TENSORRT, name="tensorrt-fp16", tensorrt=rtx)
    settings = TritonSettings(backend=Backend.TENSORRT)
    with pytest.raises(ConfigError, match="tensorrt-fp16 is of tensorrt_rtx"):
        add(proven, repository, settings)


@pytest.mark.parametrize("settings", [TEXT, BEHIND])
@pytest.mark.parametrize(
    "path", ["model.py", "./model.py", "engines", "manifest.json", "serve/triton/python_model.py"]
)
def test_no_file_of_a_manifest_takes_the_place_of_code(proven, repository, path, settings):
    manifest = read_manifest(proven)
    (record,) = manifest.engines
    for name in ("engine", "tokenizer"):
        file = (record.files[0] if name == "engine" else manifest.input.tokenizer).model_copy(
            update={"path": path}
        )
        given = manifest.input.model_copy(update={"tokenizer": file})
        engine = record.model_copy(update={"files": (*record.files, file)})
        update = {"engines": (engine,)} if name == "engine" else {"input": given}
        write_manifest(proven, manifest.model_copy(update=update))
        with pytest.raises(RunFolderError, match="a model of Triton takes") as error:
            add(proven, repository, settings)
        assert repr(path) in str(error.value)
    assert not repository.exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", ".hidden", "a/b", "a b", "a\n", "模型"])
def test_a_name_that_is_no_folder_of_the_repository_is_refused(proven, repository, name):
    manifest = read_manifest(proven)
    with pytest.raises(ConfigError, match="a model's name is a letter or digit"):
        add(proven, repository, TritonSettings(name=name))
    identity = manifest.identity.model_copy(update={"name": name})
    write_manifest(proven, manifest.model_copy(update={"identity": identity}))
    with pytest.raises(ConfigError, match="a model's name is a letter or digit") as raised:
        add(proven, repository, TritonSettings())
    assert raised.value.hint == "give it one: --set triton.name=NAME"
    assert not repository.exists()


def refusing(number):
    def rename(source, target):
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    return rename


def test_a_repository_that_nothing_can_be_renamed_into_is_told_with_both_places(
    proven, repository, monkeypatch
):
    monkeypatch.setattr(Path, "rename", refusing(errno.EXDEV))  # as of a mount point
    partial = repository.with_name(".repository.partial")
    with pytest.raises(ConfigError, match="Invalid cross-device link") as raised:
        add(proven, repository)
    assert f"written to {partial} and renamed into {repository}" in str(raised.value)
    assert "take a folder below it" in raised.value.hint
    assert not partial.exists()


def test_a_full_disk_leaves_nothing_behind(proven, repository, monkeypatch):
    monkeypatch.setattr(
        "pipework.export.triton.model_repository.shutil.copyfile", refusing(errno.ENOSPC)
    )
    with pytest.raises(OSError, match="No space left"):
        add(proven, repository)
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]
    assert not list(repository.iterdir())


def test_an_export_that_is_killed_between_two_models_leaves_them_in_step(proven, repository):
    """What it left is what no version asks; of both models the newest versions are the same."""
    add(proven, repository, BEHIND)
    changed_engine(proven)
    shutil.copytree(repository / "topics-engine" / "1", repository / "topics-engine" / "2")
    assert add(proven, repository, BEHIND).new
    for model in ("topics", "topics-engine"):
        assert sorted(path.name for path in (repository / model).glob("[0-9]*")) == ["1", "2"]
    shutil.rmtree(repository / "topics-engine" / "2")
    assert add(proven, repository, BEHIND).folder.name == "3"


def test_an_engine_without_its_rows_is_not_put_behind_a_text_model(proven, repository):
    (record,) = read_manifest(proven).engines
    files = (file for file in record.files if not file.path.endswith(KEPT_ROWS))
    change(proven, files=tuple(files))
    with pytest.raises(RunFolderError, match=r"expected one file model\.onnx and one rows\.npz"):
        add(proven, repository, BEHIND)
    assert not repository.exists()
