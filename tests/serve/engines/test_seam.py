import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines import choose_engine, open_proven


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A run folder to spoil."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_the_first_engine_is_chosen_where_no_name_is_given(run: Path) -> None:
    assert choose_engine(read_manifest(run)).name == "onnx"


def test_an_unknown_engine_is_reported_with_the_known_ones(run: Path) -> None:
    with pytest.raises(RunFolderError, match="has no engine 'fast'; its engines: onnx") as caught:
        choose_engine(read_manifest(run), "fast")
    assert "pipe export RUN --to onnx" in caught.value.hint


def test_a_run_without_engines_is_reported(copied: Path) -> None:
    manifest = read_manifest(copied).model_copy(update={"engines": ()})
    with pytest.raises(RunFolderError, match="has no engine; its engines: none"):
        choose_engine(manifest)


def test_failed_parity_is_refused_by_name(make_run: Callable[..., Path]) -> None:
    run = make_run(passed=False)
    with pytest.raises(RunFolderError, match="engine onnx did not pass parity"):
        open_proven(run, read_manifest(run))


@pytest.mark.parametrize("name", ["tokenizer.json", "engines/onnx/model.onnx"])
def test_a_changed_file_is_refused_by_name(copied: Path, name: str) -> None:
    with (copied / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(RunFolderError, match=f"{name} changed"):
        open_proven(copied, read_manifest(copied))


@pytest.mark.parametrize("name", ["tokenizer.json", "engines/onnx/model.onnx"])
def test_a_missing_file_is_refused_by_name(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(RunFolderError, match=f"{name} is missing"):
        open_proven(copied, read_manifest(copied))


def test_an_engine_without_its_graph_file_is_refused(copied: Path) -> None:
    manifest = read_manifest(copied)
    engine = manifest.engines[0].model_copy(update={"files": ()})
    write_manifest(copied, manifest.model_copy(update={"engines": (engine,)}))
    with pytest.raises(RunFolderError, match=r"expected one file model\.onnx, found 0"):
        open_proven(copied, read_manifest(copied))


def test_a_missing_runtime_is_reported_with_the_install_command(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="onnxruntime is not installed") as caught:
        open_proven(run, read_manifest(run))
    assert caught.value.hint == "pip install 'pipework[cpu]'"
