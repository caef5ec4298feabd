import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import ConfigError, RunFolderError
from pipework.export.config import TritonBackend, TritonSettings
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.export.triton.triton_config import FILE_NAME, from_text, text_config, to_text
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineBuild, Layout, Precision
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE as KEPT_ROWS
from pipework.serve.engines import open_proven
from pipework.tasks.windows import Windows
from pipework.text.encoding import open_encoder
from tests.checked_manifest import as_checked

TEXT = TritonSettings(name="topics")
WITH_ENGINE_MODEL = TritonSettings(name="topics", backend=TritonBackend.ONNXRUNTIME)


@pytest.fixture
def repository(tmp_path):
    return tmp_path / "models" / "repository"


def add(run, repository, settings=TEXT, choice=None, progress=None):
    return add_version(
        run, repository, settings, choice or EngineChoice(), progress or NullProgress()
    )


def change(run, **changed):
    """Change the record of the run's engine."""
    manifest = read_manifest(run)
    (record,) = manifest.engines
    write_manifest(
        run, manifest.model_copy(update={"engines": (record.model_copy(update=changed),)})
    )


def changed_engine(run):
    """Give the run another engine, with the same graph and other reference rows."""
    (record,) = read_manifest(run).engines
    (rows,) = (file.path for file in record.files if file.path.endswith(KEPT_ROWS))
    (run / rows).write_bytes(b"other rows")
    others = [file for file in record.files if file.path != rows]
    change(run, files=(*others, record_file(run, run / rows)))


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_version_is_a_run_folder_with_the_same_logits(exported_run, repository):
    added = add(exported_run, repository)
    assert added.new
    assert added.folder == repository / "topics" / "1"
    manifest = read_manifest(exported_run)
    encodings = open_encoder(added.folder, manifest).encode([Example(text="rain all week")])
    with (
        open_proven(exported_run, manifest) as expected,
        open_proven(added.folder, read_manifest(added.folder)) as found,
    ):
        assert np.array_equal(found.infer(encodings).values, expected.infer(encodings).values)
    files = {name for name in tree(added.folder) if not name.startswith("engines/")}
    assert files == {"model.py", "manifest.json", "tokenizer.json"}


def test_the_model_has_the_name_of_the_run_and_the_generated_config(exported_run, repository):
    manifest = read_manifest(exported_run)
    name = manifest.identity.name
    add(exported_run, repository, TritonSettings())
    config = from_text((repository / name / FILE_NAME).read_text())
    assert config == text_config(name, manifest, TritonSettings())
    warmup = config.model_warmup[0].inputs["text"].input_data_file
    assert (repository / name / "warmup" / warmup).is_file()


def test_another_engine_is_added_as_a_new_version(proven, repository):
    add(proven, repository)
    before = tree(repository)
    changed_engine(proven)
    assert add(proven, repository).folder.name == "2"
    after = tree(repository)
    assert before.items() <= after.items()
    assert {name.split("/")[1] for name in after.keys() - before.keys()} == {"2"}


def test_a_damaged_version_is_added_again(proven, repository):
    first = add(proven, repository)
    (path,) = first.folder.rglob("model.onnx")
    path.write_bytes(b"damaged")
    again = add(proven, repository)
    assert (again.new, again.folder.name) == (True, "2")
    assert not add(proven, repository).new


def test_the_same_engine_is_not_added_twice(proven, repository):
    first = add(proven, repository)
    before = tree(repository)
    again = add(proven, repository)
    assert (again.new, again.folder) == (False, first.folder)
    changed_engine(proven)
    add(proven, repository)
    assert not add(proven, repository).new
    assert before.items() <= tree(repository).items()


def test_other_windows_are_added_as_a_new_version(proven, repository):
    add(proven, repository)
    windowed = read_manifest(proven).model_copy(update={"windows": Windows(stride=4)})
    write_manifest(proven, windowed)
    added = add(proven, repository)
    assert (added.new, read_manifest(added.folder).windows) == (True, windowed.windows)
    assert not add(proven, repository).new


def test_an_edited_config_stays_and_differing_settings_are_reported(proven, repository, noting):
    add(proven, repository)
    path = repository / "topics" / FILE_NAME
    config = from_text(path.read_text())
    config.instance_group[0].count = 3
    path.write_text("# mine\n" + to_text(config))
    changed_engine(proven)
    add(proven, repository, progress=noting)
    assert path.read_text().startswith("# mine\n")
    (note,) = noting.lines
    assert note == f"{path} was not changed; the settings differ in instance_group"


def test_another_model_of_that_name_is_rejected(proven, repository):
    add(proven, repository)
    before = tree(repository)
    manifest = read_manifest(proven)
    task = manifest.task.model_copy(update={"labels": (*manifest.task.labels, "one more")})
    write_manifest(proven, as_checked(manifest.model_copy(update={"task": task})))
    with pytest.raises(ConfigError, match="belongs to another model: output differ") as raised:
        add(proven, repository)
    assert raised.value.hint == "set another name: --set triton.name=NAME"
    assert tree(repository) == before


def test_a_model_with_as_many_other_labels_is_rejected(proven, repository):
    add(proven, repository)
    manifest = read_manifest(proven)
    labels = manifest.task.labels
    assert (repository / "topics" / "labels.txt").read_text().splitlines() == [*labels]
    task = manifest.task.model_copy(update={"labels": labels[::-1]})
    write_manifest(proven, as_checked(manifest.model_copy(update={"task": task})))
    with pytest.raises(ConfigError, match=r"belongs to another model: labels\.txt differ"):
        add(proven, repository)


def test_a_model_without_labels_accepts_further_versions(proven, repository):
    add(proven, repository)
    (repository / "topics" / "labels.txt").unlink()
    path = repository / "topics" / FILE_NAME
    path.write_text(path.read_text().replace('  label_filename: "labels.txt"\n', ""))
    changed_engine(proven)
    assert add(proven, repository).folder.name == "2"


def test_a_folder_without_a_valid_config_is_reported(exported_run, repository):
    (repository / "topics").mkdir(parents=True)
    for reason in ("No such file", "Couldn't parse integer"):
        with pytest.raises(ConfigError, match=rf"pbtxt is not a Triton model config: .*{reason}"):
            add(exported_run, repository)
        (repository / "topics" / FILE_NAME).write_text('max_batch_size: "many"')


@pytest.mark.parametrize("settings", [TEXT, WITH_ENGINE_MODEL])
def test_an_interrupted_export_leaves_nothing_visible_to_triton(
    proven, repository, monkeypatch, settings
):
    """The engine model is complete before the text model; the next export cleans up."""

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


def test_text_and_engine_model_have_the_same_versions(proven, repository):
    add(proven, repository, WITH_ENGINE_MODEL)
    (record,) = read_manifest(proven).engines
    graph = (proven / record.files[0].path).read_bytes()
    shutil.copytree(repository / "topics" / "1", repository / "topics" / "7")
    changed_engine(proven)
    assert add(proven, repository, WITH_ENGINE_MODEL).folder == repository / "topics" / "8"
    files = tree(repository)
    assert files["topics-engine/8/model.onnx"] == graph
    assert "topics-engine/8/rows.npz" not in files
    (rows_file,) = [name for name in files if name.startswith("topics/8/engines")]
    assert rows_file.endswith("/rows.npz")  # with which the text model checks the engine model
    parameters = from_text(files["topics/config.pbtxt"].decode()).parameters
    assert parameters["tensor_model"].string_value == "topics-engine"


def test_a_run_without_a_proven_engine_is_rejected_with_the_export_command(run, proven, repository):
    with pytest.raises(
        RunFolderError, match=r"no proven engine for Triton .* its engines: none"
    ) as empty:
        add(run, repository)
    assert empty.value.hint == f"build one first: pipe export {run} --to onnx"
    change(proven, parity=None, name="x")
    with pytest.raises(RunFolderError, match=r"its engines: x \(built, not run\)"):
        add(proven, repository)
    assert not repository.exists()


def test_an_engine_is_chosen_by_precision_and_layout(exported_run, repository):
    choice = EngineChoice(precision=Precision.INT8, layout=Layout.PACKED)
    with pytest.raises(RunFolderError, match=r"for Triton \(python, int8, packed\)") as raised:
        add(exported_run, repository, choice=choice)
    assert raised.value.hint.endswith("--to onnx --precision int8 --layout packed")
    assert add(exported_run, repository, choice=EngineChoice(precision=Precision.FP32)).new


def test_an_engine_with_a_changed_file_is_rejected(proven, repository):
    (record,) = read_manifest(proven).engines
    with (proven / record.files[0].path).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=r"model\.onnx changed"):
        add(proven, repository)


def test_the_tensorrt_backend_rejects_engines_of_tensorrt_rtx(proven, repository):
    rtx = EngineBuild(
        opset=17,
        built_with={"tensorrt_rtx": "1.7"},
        target="one GPU",
        profiles=(),
    )
    change(proven, format="tensorrt", name="tensorrt-fp16", built=rtx)
    settings = TritonSettings(backend=TritonBackend.TENSORRT)
    with pytest.raises(ConfigError, match="tensorrt-fp16 was built by tensorrt_rtx"):
        add(proven, repository, settings)


@pytest.mark.parametrize("settings", [TEXT, WITH_ENGINE_MODEL])
@pytest.mark.parametrize(
    "path", ["model.py", "./model.py", "engines", "manifest.json", "serve/triton/python_model.py"]
)
def test_a_manifest_cannot_overwrite_code(proven, repository, path, settings):
    manifest = read_manifest(proven)
    (record,) = manifest.engines
    for name in ("engine", "tokenizer"):
        file = (record.files[0] if name == "engine" else manifest.input.tokenizer).model_copy(
            update={"path": path}
        )
        input_ = manifest.input.model_copy(update={"tokenizer": file})
        engine = record.model_copy(update={"files": (*record.files, file)})
        update = {"engines": (engine,)} if name == "engine" else {"input": input_}
        write_manifest(proven, as_checked(manifest.model_copy(update=update)))
        with pytest.raises(
            RunFolderError, match=r"expected tokenizer\.json or an engine file"
        ) as error:
            add(proven, repository, settings)
        assert repr(path) in str(error.value)
    assert not repository.exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", ".hidden", "a/b", "a b", "a\n", "模型"])
def test_an_invalid_model_name_is_rejected(proven, repository, name):
    manifest = read_manifest(proven)
    message = (
        r"must start with a letter or digit and contain only letters, digits, _ \. and -; found"
    )
    with pytest.raises(ConfigError, match=message):
        add(proven, repository, TritonSettings(name=name))
    identity = manifest.identity.model_copy(update={"name": name})
    write_manifest(proven, manifest.model_copy(update={"identity": identity}))
    with pytest.raises(ConfigError, match=message) as raised:
        add(proven, repository, TritonSettings())
    assert raised.value.hint == "set another: --set triton.name=NAME"
    assert not repository.exists()


def refusing(number):
    def rename(source, target):
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    return rename


def test_a_repository_on_another_mount_is_reported(proven, repository, monkeypatch):
    monkeypatch.setattr(Path, "rename", refusing(errno.EXDEV))  # as of a mount point
    partial = repository.with_name(".repository.partial")
    with pytest.raises(ConfigError, match="Invalid cross-device link") as raised:
        add(proven, repository)
    assert f"write a model to {partial} and rename it into {repository}" in str(raised.value)
    assert "use a folder below it" in raised.value.hint
    assert not partial.exists()


def test_a_full_disk_leaves_no_files(proven, repository, monkeypatch):
    monkeypatch.setattr(
        "pipework.export.triton.model_repository.shutil.copyfile", refusing(errno.ENOSPC)
    )
    with pytest.raises(OSError, match="No space left"):
        add(proven, repository)
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]
    assert not list(repository.iterdir())


def test_an_export_killed_between_two_models_is_cleaned_up(proven, repository):
    """An engine version without a text version is dropped: both models have the same versions."""
    add(proven, repository, WITH_ENGINE_MODEL)
    changed_engine(proven)
    shutil.copytree(repository / "topics-engine" / "1", repository / "topics-engine" / "2")
    assert add(proven, repository, WITH_ENGINE_MODEL).new
    for model in ("topics", "topics-engine"):
        assert sorted(path.name for path in (repository / model).glob("[0-9]*")) == ["1", "2"]
    shutil.rmtree(repository / "topics-engine" / "2")
    assert add(proven, repository, WITH_ENGINE_MODEL).folder.name == "3"


def test_an_engine_without_reference_rows_is_rejected(proven, repository):
    (record,) = read_manifest(proven).engines
    files = (file for file in record.files if not file.path.endswith(KEPT_ROWS))
    change(proven, files=tuple(files))
    with pytest.raises(RunFolderError, match=r"expected one file model\.onnx and one rows\.npz"):
        add(proven, repository, WITH_ENGINE_MODEL)
    assert not repository.exists()
