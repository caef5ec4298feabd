"""The seam between an engine's record and what runs it. No engine is opened without its proof."""

import importlib.util
from pathlib import Path

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.evaluation import Engine
from pipework.manifest import EngineFormat, EngineRecord, Manifest, verify_files
from pipework.padding import Padding


def choose_engine(manifest: Manifest, name: str | None = None) -> EngineRecord:
    """Return the engine of that name, or the first that was recorded.

    Raises:
        RunFolderError: there is none (of that name), or its parity did not pass.
    """
    found = [engine for engine in manifest.engines if name in (None, engine.name)]
    if not found:
        names = ", ".join(engine.name for engine in manifest.engines) or "none"
        wanted = "an engine" if name is None else f"engine {name!r}"
        message = f"run {manifest.identity.name} lacks {wanted}; engines there: {names}"
        raise RunFolderError(message, "make one: pipe export RUN --to onnx")
    if not found[0].parity.passed:
        message = f"engine {found[0].name} did not pass parity, so it is not served"
        raise RunFolderError(message, "make a proven one: pipe export RUN --to onnx")
    return found[0]


def open_proven(run: Path, manifest: Manifest, name: str | None = None) -> Engine:
    """Open an engine after checking its parity and the digests of its files and the tokenizer.

    Raises:
        RunFolderError: naming the engine or the file that does not hold.
        MissingDependencyError: the runtime is not installed.
    """
    record = choose_engine(manifest, name)
    verify_files(run, (manifest.input.tokenizer, *record.files))
    return open_engine(run, record, manifest)


def open_engine(run: Path, record: EngineRecord, manifest: Manifest) -> Engine:
    """Open what a record describes. Whether it was proven is `open_proven`'s to ask.

    Raises:
        RunFolderError: the files are not an engine that fits the model's input.
        MissingDependencyError: the runtime is not installed.
    """
    match record.format:
        case EngineFormat.ONNX:
            _need("onnxruntime")
            from serve.engines.onnxruntime import OnnxRuntimeEngine  # noqa: PLC0415  (optional)

            return OnnxRuntimeEngine(
                run / _file(record, ".onnx"),
                padding=Padding.of(manifest.input),
                spans=manifest.model.takes_spans,
            )


def _need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        message = f"{module} is not installed, and the engine needs it"
        raise MissingDependencyError(message, "pip install 'pipework[cpu]'")


def _file(record: EngineRecord, suffix: str) -> str:
    found = [file.path for file in record.files if file.path.endswith(suffix)]
    if len(found) != 1:
        message = f"engine {record.name}: expected one {suffix} file, found {len(found)}"
        raise RunFolderError(message, "make it again: pipe export RUN --to onnx")
    return found[0]
