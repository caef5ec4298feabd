import pytest

from pipework.errors import RunFolderError
from pipework.serve.config import ServeSettings
from pipework.serve.models.open_models import open_models


def test_a_folder_that_is_neither_a_run_nor_a_repository_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="neither a run folder nor a repository") as caught:
        open_models(tmp_path, ServeSettings())
    assert caught.value.hint == (
        "expected a run folder, or a repository with NAME/VERSION/manifest.json"
    )


def test_an_unfinished_run_is_refused(tmp_path):
    (tmp_path / "config.toml").touch()
    with pytest.raises(RunFolderError, match="its training did not finish") as caught:
        open_models(tmp_path, ServeSettings())
    assert caught.value.hint.endswith("--resume")
