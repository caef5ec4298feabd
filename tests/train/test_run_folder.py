"""The run folder during training is exclusive, and files of others stay."""

import pytest

from pipework.errors import ConfigError, RunFolderError
from pipework.progress import NullProgress
from pipework.train.run import train
from pipework.train.run_folder import run_folder


@pytest.mark.parametrize("names", [["config.toml"], ["checkpoint"], ["manifest.json.partial"]])
def test_a_folder_without_train_log_is_not_modified(small, tmp_path, names):
    (tmp_path / "run").mkdir()
    for name in names:
        (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(RunFolderError, match="files that no run wrote"):
        train(small(), tmp_path / "run", NullProgress())
    assert (tmp_path / "run" / names[0]).read_text() == "mine"


def test_a_folder_in_use_by_another_run_is_refused(small, tmp_path):
    with (
        run_folder(tmp_path / "run", small(), NullProgress(), resume=False),
        pytest.raises(RunFolderError, match="is being written by another"),
    ):
        train(small(), tmp_path / "run", NullProgress())


def test_a_folder_with_files_of_the_user_is_not_modified(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"files that no run wrote: thesis\.tex"):
        train(small(), tmp_path / "run", NullProgress())
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"


def test_an_error_before_the_first_step_leaves_no_folder(small, tmp_path):
    run, kept = tmp_path / "run", tmp_path / "kept"
    kept.mkdir()
    for folder in (run, kept):
        with pytest.raises(ConfigError, match=r"checkpoint '\./none' is not a folder"):
            train(small("model.preset=", "model.name=./none"), folder, NullProgress())
    assert not run.exists()
    assert list(kept.iterdir()) == []


def test_an_absent_compiler_leaves_no_folder(small, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="needs the compiler"):
        train(small("train.compile=true"), tmp_path / "run", NullProgress())
    assert not (tmp_path / "run").exists()
