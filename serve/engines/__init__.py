"""The seam between an engine's record and what runs it. No engine is opened without its proof."""

import importlib.util
from pathlib import Path

from pipework.engine_record import EngineFormat, EngineRecord, Variant
from pipework.errors import MissingDependencyError, RunFolderError
from pipework.evaluation import Engine
from pipework.manifest import Manifest
from pipework.padding import Padding
from pipework.record import verify_files
from serve.collate import Collate

MODELS = {
    EngineFormat.ONNX: "model.onnx",
    EngineFormat.OPENVINO: "model.xml",
    EngineFormat.TENSORRT: "model.engine",
}


def choose_engine(manifest: Manifest, name: str | None = None) -> EngineRecord:
    """Return the engine of that name, or the fastest proven one.

    Engines are in the order of their measured speed.

    Raises:
        RunFolderError: there is none (of that name), or its parity did not pass.
    """
    found = [engine for engine in manifest.engines if name in (None, engine.name)]
    if not found:
        names = ", ".join(engine.name for engine in manifest.engines) or "none"
        wanted = "an engine" if name is None else f"engine {name!r}"
        message = f"run {manifest.identity.name} lacks {wanted}; engines there: {names}"
        raise RunFolderError(message, "make one: pipe export RUN --to onnx")
    proven = [engine for engine in found if engine.proven]
    if not proven:
        message = f"engine {found[0].name} did not pass parity, so it is not served"
        raise RunFolderError(message, "make a proven one: pipe export RUN --to onnx")
    return proven[0]


def open_proven(run: Path, manifest: Manifest, name: str | None = None) -> Engine:
    """Open an engine after checking its parity and the digests of its files and the tokenizer.

    Raises:
        RunFolderError: naming the engine or the file that does not hold.
        MissingDependencyError: the runtime is not installed.
    """
    record = choose_engine(manifest, name)
    verify_files(run, (manifest.input.tokenizer, *record.files))
    return open_engine(run / _model(record), record, manifest)


def open_engine(path: Path, variant: Variant, manifest: Manifest, *, whole: bool = False) -> Engine:
    """Open an engine's file. Whether it was proven is `open_proven`'s to ask.

    Args:
        path: the engine's main file, named as in MODELS.
        variant: what it is.
        manifest: of the run, for what its inputs look like.
        whole: whether each batch is one call, as a proof over given shapes wants it.

    Raises:
        RunFolderError: the files are not an engine that fits the model's input.
        MissingDependencyError: the runtime is not installed.
    """
    collate = Collate(
        layout=variant.layout,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
        whole=whole,
    )
    match variant.format:
        case EngineFormat.ONNX:
            _need("onnxruntime")
            from serve.engines.onnxruntime import OnnxRuntimeEngine  # noqa: PLC0415  (optional)

            return OnnxRuntimeEngine(path, collate)
        case EngineFormat.OPENVINO:
            _need("openvino")
            from serve.engines.openvino import OpenVinoEngine  # noqa: PLC0415  (optional)

            return OpenVinoEngine(path, collate, precision=variant.precision)
        case EngineFormat.TENSORRT:
            from serve.engines.tensorrt import TensorRtEngine  # noqa: PLC0415  (optional)

            return TensorRtEngine(path, collate)


def _need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        message = f"{module} is not installed, and the engine needs it"
        raise MissingDependencyError(message, "pip install 'pipework[cpu]'")


def _model(record: EngineRecord) -> str:
    wanted = MODELS[record.format]
    found = [file.path for file in record.files if Path(file.path).name == wanted]
    if len(found) != 1:
        message = f"engine {record.name}: expected one file {wanted}, found {len(found)}"
        raise RunFolderError(message, "make it again: pipe export RUN --to onnx")
    return found[0]
