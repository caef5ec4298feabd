"""Add an engine of a run to a Triton model repository as a new version.

A version of a text model is a small run folder with one engine, so the code that serves run folders
serves it too. Versions are written to a temporary folder and renamed, so a Triton server that polls
the repository never sees an incomplete version.
"""

import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.errors import ConfigError, RunFolderError
from pipework.export.config import TritonBackend, TritonSettings
from pipework.export.triton.triton_config import (
    FILE_NAME,
    LABELS,
    differing_fields,
    from_text,
    label_file,
    signature,
    tensor_config,
    text_config,
    to_text,
    warmup_files,
)
from pipework.progress import Progress
from pipework.run_folder.change_limits import DEFAULT_LIMITS
from pipework.run_folder.engine_record import EngineRecord, Layout, Precision
from pipework.run_folder.files import (
    MANIFEST_FILE,
    exclusive_lock,
    file_digest,
    verify_files,
    verify_present,
)
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.serve.engines.runtimes import RUNTIMES, runtime_of
from pipework.serve.engines.triton import files_of
from pipework.serve.models.repository import NAME

MODEL = b'''\
"""Written by `pipe export --to triton`; the code is in the pipework that Triton's Python has."""

from pipework.serve.triton.python_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
TOKENIZER, ENGINES = "tokenizer.json", "engines"
Files = Mapping[str, Path | bytes]  # by relative path: a file to copy, or the content to write


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Criteria to choose an engine of a run; None accepts any."""

    precision: Precision | None = None
    layout: Layout | None = None

    def choose(self, run: Path, manifest: Manifest, backend: TritonBackend) -> EngineRecord:
        """Return the fastest proven engine that the backend supports.

        Without a precision, engines within the default limits of changes come first. A run without
        such an engine is a RunFolderError.
        """
        engines = list(manifest.engines)  # ordered by speed
        if self.precision is None:
            engines.sort(key=lambda engine: not DEFAULT_LIMITS.allow(engine, manifest.task))
        for engine in engines:
            fits = self.precision in (None, engine.precision) and _fits(engine, backend)
            if engine.proven and fits and self.layout in (None, engine.layout):
                return engine
        criteria = ", ".join(value for value in (backend, self.precision, self.layout) if value)
        names = ", ".join(map(_named, manifest.engines)) or "none"
        message = f"{run} has no proven engine for Triton ({criteria}); its engines: {names}"
        target = next(
            (r.format for r in RUNTIMES if r.triton is not None and r.triton.backend == backend),
            RUNTIMES[0].format,
        )
        options = {"--to": target, "--precision": self.precision, "--layout": self.layout}
        command = " ".join(f"{option} {value}" for option, value in options.items() if value)
        raise RunFolderError(message, f"build one first: pipe export {run} {command}")


@dataclass(frozen=True, kw_only=True)
class AddedVersion:
    """A version in a repository: its engine, its folder and whether it is new."""

    engine: str
    folder: Path
    new: bool


@dataclass(frozen=True, kw_only=True)
class _TritonModel:
    """A model to write: its config, the files of a version, and the files next to the versions."""

    config: ModelConfig
    version_files: Files
    model_files: Files

    @property
    def name(self) -> str:
        return str(self.config.name)


def add_version(
    run: Path, repository: Path, settings: TritonSettings, choice: EngineChoice, progress: Progress
) -> AddedVersion:
    """Add an engine of a run to a repository, as the newest version of its model.

    An existing `config.pbtxt` stays unchanged, and an engine is not added again if
    its version is intact.

    Args:
        run: the run folder.
        repository: the repository folder; created if it does not exist.
        settings: settings of the model.
        choice: criteria to choose the engine.
        progress: receives a note about settings that differ from an existing config.

    Raises:
        RunFolderError: the run has no such engine, or its files do not match its manifest.
        ConfigError: the model name is invalid or used by a different model.
    """
    manifest = read_classifier(run)
    record = choice.choose(run, manifest, settings.backend)
    if settings.backend is not TritonBackend.PYTHON:
        runtime_of(record.format).check_triton(record)
    _check_paths(run, manifest, record)
    manifest.check_current((record,))
    verify_present(run, manifest.model.checkpoint)
    verify_files(run, (manifest.input.tokenizer, *record.files))
    served = manifest.model_copy(update={"engines": (record,), "cascade": None})
    parts = _parts(run, served, settings)
    repository = repository.resolve()
    repository.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(repository):
        for part in parts:
            _check_fits(repository / part.name, part, progress)
        model = repository / parts[-1].name
        for version in _versions(model):
            intact = all(_is_intact(repository / part.name / str(version), part) for part in parts)
            if intact and _matches(model / str(version), served):
                return AddedVersion(engine=record.name, folder=model / str(version), new=False)
        for part in parts[:-1]:
            _drop_incomplete(repository, repository / part.name, model)
        versions = (version for part in parts for version in _versions(repository / part.name))
        number = str(max(versions, default=0) + 1)
        for part in parts:
            _add(repository, part, number)
    return AddedVersion(engine=record.name, folder=model / number, new=True)


def _fits(engine: EngineRecord, backend: TritonBackend) -> bool:
    form = runtime_of(engine.format).triton
    return backend is TritonBackend.PYTHON or (form is not None and form.backend == backend)


def _named(engine: EngineRecord) -> str:
    return engine.name if engine.parity is not None else f"{engine.name} (built, not run)"


def _check_paths(run: Path, manifest: Manifest, record: EngineRecord) -> None:
    """Check that the files of a manifest have the expected paths in a version.

    Raises:
        RunFolderError: a file has another path.
    """
    # A version folder is on Triton's Python path, so a file at another path could replace code.
    tokenizer = manifest.input.tokenizer.path
    valid = {tokenizer: tokenizer == TOKENIZER}
    for file in record.files:
        parts = PurePosixPath(file.path).parts
        valid[file.path] = file.path != tokenizer and parts[:1] == (ENGINES,) and len(parts) > 1
    for path, allowed in valid.items():
        if not allowed:
            expected = f"expected {TOKENIZER} or an engine file below {ENGINES}/"
            message = f"{run / MANIFEST_FILE} names {path!r}: {expected}"
            raise RunFolderError(message, "the manifest was modified: export the run again")


def _name(manifest: Manifest, settings: TritonSettings) -> str:
    """Return the name of the model, which is its folder in the repository.

    Raises:
        ConfigError: the name is invalid.
    """
    name = settings.name or manifest.identity.name
    if NAME.fullmatch(name) is None:
        message = (
            "a model name must start with a letter or digit and contain only letters, digits, "
            f"_ . and -; found {name!r}"
        )
        raise ConfigError(message, "set another: --set triton.name=NAME")
    return name


def _parts(run: Path, manifest: Manifest, settings: TritonSettings) -> list[_TritonModel]:
    """Return the models to write; the text model is last, because it calls the engine model."""
    (record,) = manifest.engines
    name = _name(manifest, settings)
    files: dict[str, Path | bytes] = {
        "model.py": MODEL,
        MANIFEST_FILE: (manifest.model_dump_json(indent=2) + "\n").encode(),
        TOKENIZER: run / TOKENIZER,
    }
    if settings.backend is TritonBackend.PYTHON:
        files |= {file.path: run / file.path for file in record.files}
        config = text_config(name, manifest, settings)
        model_files = warmup_files(manifest) | label_file(manifest)
        return [_TritonModel(config=config, version_files=files, model_files=model_files)]
    engine_files, rows = files_of(record)
    tensors = tensor_config(name, manifest, settings)
    config = text_config(name, manifest, settings)
    paths = {name: run / file.path for name, file in engine_files.items()}
    return [
        _TritonModel(config=tensors, version_files=paths, model_files={}),
        _TritonModel(
            config=config,
            version_files=files | {rows.path: run / rows.path},
            model_files=label_file(manifest),
        ),
    ]


def _check_fits(model: Path, part: _TritonModel, progress: Progress) -> None:
    """Check that an existing model has the same inputs and outputs as a new version.

    Raises:
        ConfigError: they differ, or the config of the existing model cannot be read.
    """
    path, config = model / FILE_NAME, part.config
    if not model.exists():
        return
    try:
        existing = from_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path} is not a Triton model config: {error}"
        raise ConfigError(message, "remove the folder, or use another --repository") from error
    fields = differing_fields(signature(existing), signature(config))
    labels = model / LABELS
    if not fields and labels.is_file() and labels.read_bytes() != part.model_files.get(LABELS):
        fields.append(LABELS)
    if fields:
        message = f"{path} belongs to another model: {', '.join(fields)} differ"
        raise ConfigError(message, "set another name: --set triton.name=NAME")
    unchanged = differing_fields(existing, config)
    if unchanged:
        progress.note(f"{path} was not changed; the settings differ in {', '.join(unchanged)}")


def _versions(model: Path) -> list[int]:
    if not model.is_dir():
        return []
    return sorted(int(path.name) for path in model.iterdir() if path.name.isdecimal())


def _matches(version: Path, manifest: Manifest) -> bool:
    """Return whether a version has the only engine of a manifest, with its task and inputs."""
    try:
        existing = read_classifier(version)
    except RunFolderError:
        return False
    files = [[engine.files for engine in side.engines] for side in (existing, manifest)]
    names = ("task", "input", "windows")
    same = all(getattr(existing, name) == getattr(manifest, name) for name in names)
    return same and files[0] == files[1]


def _is_intact(version: Path, part: _TritonModel) -> bool:
    """Return whether the files that a version was copied from are in it unchanged."""
    files = ((version / name, content) for name, content in part.version_files.items())
    copies = ((copy, source) for copy, source in files if isinstance(source, Path))
    return all(
        copy.is_file() and file_digest(copy) == file_digest(source) for copy, source in copies
    )


def _drop_incomplete(repository: Path, engine_model: Path, model: Path) -> None:
    """Remove engine versions without a text version, left by an interrupted export."""
    # Each model serves its newest versions, which must be the same versions for both.
    newest = max(_versions(model), default=0)
    for version in _versions(engine_model):
        if version > newest:
            with _partial(repository) as partial:
                (engine_model / str(version)).rename(partial / str(version))


def _add(repository: Path, part: _TritonModel, version: str) -> None:
    with _partial(repository) as partial:
        _write(partial / version, part.version_files)
        if (repository / part.name).exists():
            (partial / version).rename(repository / part.name / version)
        else:
            _write(partial, {**part.model_files, FILE_NAME: to_text(part.config).encode()})
            partial.rename(repository / part.name)


@contextmanager
def _partial(repository: Path) -> Iterator[Path]:
    """Create a temporary folder next to the repository and remove it at the end of the block.

    Raises:
        ConfigError: the folder cannot be created or renamed into the repository.
    """
    # Not inside the repository, where Triton takes each folder as a model.
    partial = repository.with_name(f".{repository.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed export
    try:
        partial.mkdir()
        yield partial
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        message = (
            f"cannot write a model to {partial} and rename it into {repository}: {error.strerror}"
        )
        hint = "both must be writable and on one mount: use a folder below it as --repository"
        raise ConfigError(message, hint) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case bytes():
                path.write_bytes(content)
            case Path():
                shutil.copyfile(content, path)
