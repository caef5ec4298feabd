"""A run becomes a model of a Triton repository: a version beside those that are there.

A version of a text model is a small run folder with one engine, so that the code which serves a
run folder serves it too. Whatever is added is written under another name and renamed, so that a
Triton which polls the repository never sees half of it.
"""

import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.errors import ConfigError, RunFolderError
from pipework.export.config import Backend, TritonSettings
from pipework.export.triton.triton_config import (
    FILE_NAME,
    LABELS,
    differing,
    from_text,
    label_file,
    signature,
    tensor_config,
    text_config,
    to_text,
    warmup_files,
)
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineFormat, EngineRecord, Layout, Precision
from pipework.run_folder.files import FILE_NAME as MANIFEST
from pipework.run_folder.files import sole_writer, verify_files
from pipework.run_folder.manifest import Manifest, read_classifier, read_manifest
from pipework.serve.engines.tensorrt_packages import gpu_or_none
from pipework.serve.engines.triton import MODEL_FILES, files_of
from pipework.serve.models.repository import NAME

MODEL = b'''\
"""Written by `pipe export --to triton`; the code is in the pipework that Triton's Python has."""

from pipework.serve.triton.python_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
TOKENIZER, ENGINES = "tokenizer.json", "engines"
Files = Mapping[str, Path | bytes]  # by relative path: what is copied, or what is written


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which engine of a run is to be served; None for any."""

    precision: Precision | None = None
    layout: Layout | None = None

    def choose(self, run: Path, manifest: Manifest, backend: Backend) -> EngineRecord:
        """Return the fastest engine that was proven and that the backend runs.

        Raises:
            RunFolderError: there is none.
        """
        formats = _formats(backend)
        for engine in manifest.engines:  # in the order of their speed
            fits = engine.format in formats and engine.proven
            precise = self.precision in (None, engine.precision)
            if fits and precise and self.layout in (None, engine.layout):
                return engine
        wanted = ", ".join(value for value in (backend, self.precision, self.layout) if value)
        names = ", ".join(map(_named, manifest.engines)) or "none"
        message = f"{run} holds no proven engine for Triton ({wanted}); engines there: {names}"
        options = {"--to": formats[0], "--precision": self.precision, "--layout": self.layout}
        given = " ".join(f"{option} {value}" for option, value in options.items() if value)
        raise RunFolderError(message, f"make one first: pipe export {run} {given}")


@dataclass(frozen=True, kw_only=True)
class Added:
    """A version that a repository holds: of which engine, where, and whether it is new there."""

    engine: str
    folder: Path
    new: bool


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A model of the repository: its config, the files of a version, and those beside versions."""

    config: ModelConfig
    files: Files
    beside: Files

    @property
    def name(self) -> str:
        return str(self.config.name)


def add_version(
    run: Path, repository: Path, settings: TritonSettings, wanted: Wanted, progress: Progress
) -> Added:
    """Add an engine of a run to a repository, as the newest version of its model.

    A `config.pbtxt` that is there stays as it is, and an engine that is there is not added again.

    Args:
        run: the run folder.
        repository: its folder; it and the model are made if they are not there.
        settings: how the model stands in it.
        wanted: which engine.
        progress: hears of settings that a config which is there does not have.

    Raises:
        RunFolderError: the run has no such engine, or does not hold what its manifest says.
        ConfigError: the repository has another model of that name, or that is no name.
    """
    manifest = read_classifier(run)
    record = wanted.choose(run, manifest, settings.backend)
    _check_flavour(record, settings.backend)
    _check_paths(run, manifest, record)
    verify_files(run, (manifest.input.tokenizer, *record.files))
    served = manifest.model_copy(update={"engines": (record,)})
    parts = _parts(run, served, settings)
    repository = repository.resolve()
    repository.mkdir(parents=True, exist_ok=True)
    with sole_writer(repository):
        for part in parts:
            _check_fits(repository / part.name, part, progress)
        model = repository / parts[-1].name
        for version in _versions(model):
            whole = all((repository / part.name / str(version)).is_dir() for part in parts)
            if whole and _holds(model / str(version), served):
                return Added(engine=record.name, folder=model / str(version), new=False)
        for part in parts[:-1]:
            _drop_unasked(repository, repository / part.name, model)
        there = (version for part in parts for version in _versions(repository / part.name))
        number = str(max(there, default=0) + 1)
        for part in parts:
            _add(repository, part, number)
    return Added(engine=record.name, folder=model / number, new=True)


def _formats(backend: Backend) -> tuple[EngineFormat, ...]:
    match backend:
        case Backend.PYTHON:
            return tuple(EngineFormat)
        case Backend.ONNXRUNTIME:
            return (EngineFormat.ONNX,)
        case Backend.TENSORRT:
            return (EngineFormat.TENSORRT,)


def _named(engine: EngineRecord) -> str:
    return engine.name if engine.parity is not None else f"{engine.name} (built, not run)"


def _check_flavour(record: EngineRecord, backend: Backend) -> None:
    flavour = None if record.tensorrt is None else record.tensorrt.flavour
    if backend is Backend.TENSORRT and flavour != backend:
        message = f"engine {record.name} is of {flavour}, and Triton's backend is of tensorrt"
        hint = "build it where tensorrt is installed, or take --set triton.backend=onnxruntime"
        raise ConfigError(message, hint)


def _check_paths(run: Path, manifest: Manifest, record: EngineRecord) -> None:
    """Check that the files which a manifest names have their own places in a version.

    A version is a folder of Python's path in Triton: any other place could be that of code.

    Raises:
        RunFolderError: naming the file that has not.
    """
    tokenizer = manifest.input.tokenizer.path
    places = {tokenizer: tokenizer == TOKENIZER}
    for file in record.files:
        parts = PurePosixPath(file.path).parts
        places[file.path] = file.path != tokenizer and parts[:1] == (ENGINES,) and len(parts) > 1
    for path, allowed in places.items():
        if not allowed:
            message = (
                f"{run / MANIFEST} names {path!r}; a model of Triton takes {TOKENIZER} and, of an "
                f"engine, files below {ENGINES}/"
            )
            raise RunFolderError(message, "the manifest was changed: export the run again")


def _name(manifest: Manifest, settings: TritonSettings) -> str:
    """Return the name of the model, which is a folder of the repository.

    Raises:
        ConfigError: it is none.
    """
    name = settings.name or manifest.identity.name
    if NAME.fullmatch(name) is None:
        message = f"a model's name is a letter or digit, then those and _ . -; found {name!r}"
        raise ConfigError(message, "give it one: --set triton.name=NAME")
    return name


def _parts(run: Path, manifest: Manifest, settings: TritonSettings) -> list[_Part]:
    """Return the models to write, the one that takes texts last: it asks the one before it."""
    (record,) = manifest.engines
    name = _name(manifest, settings)
    files: dict[str, Path | bytes] = {
        "model.py": MODEL,
        MANIFEST: (manifest.model_dump_json(indent=2) + "\n").encode(),
        TOKENIZER: run / TOKENIZER,
    }
    if settings.backend is Backend.PYTHON:
        files |= {file.path: run / file.path for file in record.files}
        config = text_config(name, manifest, settings)
        beside = warmup_files(manifest) | label_file(manifest)
        return [_Part(config=config, files=files, beside=beside)]
    behind, rows = files_of(record)
    first_only = _first_only(run / behind[MODEL_FILES[record.format]].path, record)
    tensors = tensor_config(name, manifest, settings, first_only=first_only, on_gpu=_on_gpu(record))
    config = text_config(name, manifest, settings, first_only=first_only)
    of_engine = {file: run / one.path for file, one in behind.items()}
    return [
        _Part(config=tensors, files=of_engine, beside={}),
        _Part(
            config=config, files=files | {rows.path: run / rows.path}, beside=label_file(manifest)
        ),
    ]


def _on_gpu(record: EngineRecord) -> bool:
    """Return whether an engine was proven on a GPU: that of this machine, or any by TensorRT."""
    gpu = gpu_or_none()
    here = gpu is not None and record.parity is not None and record.parity.processor == gpu.name
    return here or record.tensorrt is not None


def _first_only(graph: Path, record: EngineRecord) -> bool:
    """Return whether a packed graph reads the first token of each text only."""
    if record.layout is Layout.PADDED:
        return True
    if record.tensorrt is not None:
        return all(one.largest["text_index"][1] == 1 for one in record.tensorrt.profiles)
    inputs = onnx.load(graph, load_external_data=False).graph.input
    (index,) = (one for one in inputs if one.name == "text_index")
    return bool(index.type.tensor_type.shape.dim[1].dim_value == 1)


def _check_fits(model: Path, part: _Part, progress: Progress) -> None:
    """Check that a model which is there takes and gives what a version to add does.

    Raises:
        ConfigError: it does not, or its config cannot be read.
    """
    path, config = model / FILE_NAME, part.config
    if not model.exists():
        return
    try:
        there = from_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path} is not the config of a model: {error}"
        raise ConfigError(message, "remove the folder, or name another --repository") from error
    apart = differing(signature(there), signature(config))
    labels = model / LABELS
    if not apart and labels.is_file() and labels.read_bytes() != part.beside.get(LABELS):
        apart.append(LABELS)
    if apart:
        message = f"{path} is of another model: {', '.join(apart)} differ"
        raise ConfigError(message, "give this one a name: --set triton.name=NAME")
    kept = differing(there, config)
    if kept:
        progress.note(f"{path} stays as it is; the settings would change {', '.join(kept)}")


def _versions(model: Path) -> list[int]:
    if not model.is_dir():
        return []
    return sorted(int(path.name) for path in model.iterdir() if path.name.isdecimal())


def _holds(version: Path, manifest: Manifest) -> bool:
    """Return whether a version answers as the one engine of a manifest does."""
    try:
        there = read_manifest(version)
    except RunFolderError:
        return False
    files = [[engine.files for engine in one.engines] for one in (there, manifest)]
    same = there.task == manifest.task and there.input == manifest.input
    return same and files[0] == files[1]


def _drop_unasked(repository: Path, behind: Path, model: Path) -> None:
    """Take away what an export left that was ended after the first of its two models.

    Else each of the two would serve its newest versions, and those would not be the same.
    """
    newest = max(_versions(model), default=0)
    for version in _versions(behind):
        if version > newest:
            with _partial(repository) as partial:
                (behind / str(version)).rename(partial / str(version))


def _add(repository: Path, part: _Part, version: str) -> None:
    with _partial(repository) as partial:
        _write(partial / version, part.files)
        if (repository / part.name).exists():
            (partial / version).rename(repository / part.name / version)
        else:
            _write(partial, {**part.beside, FILE_NAME: to_text(part.config).encode()})
            partial.rename(repository / part.name)


@contextmanager
def _partial(repository: Path) -> Iterator[Path]:
    """Make the folder that models are renamed from or to, and remove it, however the block ends.

    It is beside the repository and not in it: Triton takes every folder there for a model.

    Raises:
        ConfigError: there it cannot be made, or not be renamed into the repository.
    """
    partial = repository.with_name(f".{repository.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left from an export that was killed
    try:
        partial.mkdir()
        yield partial
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        how = f"a model is written to {partial} and renamed into {repository}"
        message = f"{how}, and that failed: {error.strerror}"
        hint = "both must be writable and on one mount: take a folder below it as --repository"
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
