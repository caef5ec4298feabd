"""Reading a model repository, without opening its models."""

import os
import shutil

import pytest

from pipework.errors import RunFolderError
from pipework.run_folder.manifest import read_manifest
from pipework.serve.models.repository import Policy, is_repository, read_repository


def served(shelf, name="topics"):
    (model,) = [one for one in read_repository(shelf.folder) if one.name == name]
    assert not model.reason
    return [one.version for one in model.versions]


def reason(shelf):
    (model,) = read_repository(shelf.folder)
    assert model.versions == ()
    return model.reason


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", ["10"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "10"]),
        ("version_policy { latest { num_versions: 9 } }", ["1", "2", "10"]),
        ("version_policy { all { } }", ["1", "2", "10"]),
        ("version_policy { specific { versions: [2, 1] } }", ["1", "2"]),
    ],
)
def test_the_config_says_which_versions_are_served(shelf, policy, expected):
    for version in (1, 10, 2):
        shelf.add(version)
    shelf.configure(policy)
    assert served(shelf) == expected


def test_without_a_config_the_newest_is_served(shelf):
    shelf.add(1)
    shelf.add(2)
    (shelf.folder / "topics" / "config.pbtxt").unlink()
    (model,) = read_repository(shelf.folder)
    assert model.policy == Policy(latest=1)
    assert served(shelf) == ["2"]


@pytest.mark.parametrize("name", ["01", "0", "-1", "2.5", "٢", "two", "9" * 19])
def test_only_decimal_numbers_are_versions(shelf, name):
    shelf.add(1, policy="version_policy { all { } }")
    shutil.copytree(shelf.folder / "topics" / "1", shelf.folder / "topics" / name)
    assert served(shelf) == ["1"]


def test_a_version_is_complete_when_it_has_a_manifest(shelf):
    shelf.add(1)
    half = shelf.add(2)
    manifest = half / "manifest.json"
    manifest.rename(half / "manifest.json.partial")
    assert served(shelf) == ["1"]
    (half / "manifest.json.partial").rename(manifest)
    assert served(shelf) == ["2"]


def test_a_missing_specific_version_has_a_reason(shelf):
    shelf.add(1, policy="version_policy { specific { versions: [1, 3] } }")
    (model,) = read_repository(shelf.folder)
    assert [one.version for one in model.versions] == ["1", "3"]
    assert not model.versions[0].reason
    assert "topics/3 is not a complete version" in model.versions[1].reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version_policy {", "config.pbtxt is not a model config: 1:"),
        ('name: "other"', "expected the folder's name 'topics'"),
        ("version_policy { latest { } }", "the latest version_policy of its config.pbtxt names no"),
        ("version_policy { specific { } }", "the specific version_policy of its config.pbtxt"),
    ],
)
def test_an_invalid_config_is_reported(shelf, text, expected):
    shelf.add(1)
    (shelf.folder / "topics" / "config.pbtxt").write_text(text)
    assert expected in reason(shelf)


def test_a_config_that_is_a_pipe_is_reported_without_reading_it(shelf):
    config = shelf.add(1).with_name("config.pbtxt")
    config.unlink()
    os.mkfifo(config)
    assert reason(shelf) == f"{config}: expected a file"


def test_a_model_without_a_version_is_reported(shelf):
    shelf.configure("")
    assert "topics has no complete version; expected topics/1/manifest.json" in reason(shelf)


def test_models_without_text_inputs_are_skipped(shelf):
    shelf.add(1)
    shelf.add(1, name="topics-engine", policy='backend: "onnxruntime"')
    shelf.add(1, name="plan", policy='backend: "" platform: "tensorrt_plan"')
    (shelf.folder / "notes").mkdir()
    (shelf.folder / ".hidden").mkdir()
    assert [one.name for one in read_repository(shelf.folder)] == ["topics"]


def test_a_version_is_not_equal_after_a_file_changes(shelf):
    version = shelf.add(1)
    before = read_repository(shelf.folder)
    assert before == read_repository(shelf.folder)
    os.utime(version / "engines" / "onnx" / "model.onnx", ns=(1, 1))
    assert before != read_repository(shelf.folder)


@pytest.mark.parametrize("link", ["", "config.pbtxt", "1", "1/manifest.json"])
def test_links_out_of_the_repository_are_refused(shelf, tmp_path, link):
    shelf.add(1)
    inside, outside = shelf.folder / "topics" / link, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    (model,) = read_repository(shelf.folder)
    reasons = [model.reason, *(one.reason for one in model.versions)]
    assert any("is outside of the repository" in one for one in reasons)
    assert not any(one.stamp for one in model.versions)


@pytest.mark.parametrize("file", ["tokenizer.json", "engines/onnx/model.onnx", "engines"])
def test_files_linked_from_outside_are_refused(shelf, tmp_path, file):
    inside, outside = shelf.add(1) / file, tmp_path / "outside"
    manifest = read_manifest(shelf.folder / "topics" / "1")
    (model,) = read_repository(shelf.folder)
    model.versions[0].check_inside(manifest)
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(RunFolderError, match="is outside of the repository"):
        model.versions[0].check_inside(manifest)


def test_links_inside_the_repository_are_followed(shelf):
    version = shelf.add(1)
    (version.parent / "2").symlink_to(version)
    assert served(shelf) == ["2"]


def test_is_repository_distinguishes_repositories_and_run_folders(shelf, run, tmp_path):
    assert not is_repository(shelf.folder)  # it is empty
    shelf.add(1)
    assert is_repository(shelf.folder)
    assert not is_repository(run)
    assert not is_repository(tmp_path / "nowhere")
