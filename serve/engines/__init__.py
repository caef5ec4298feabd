"""The seam between an engine's record and what runs it. No engine is opened without its proof."""

import importlib.util
import logging
from pathlib import Path

from pipework.errors import MissingDependencyError, PipeError, RunFolderError
from pipework.run_folder.engine_record import EngineFormat, EngineRecord, TensorRt, Variant
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.scoring.reference_rows import FILE_NAME as KEPT_ROWS
from pipework.scoring.reference_rows import KeptRows
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cuda import NoGpuError
from pipework.serve.engines.reproof import prove_here
from pipework.serve.engines.tensorrt_packages import fits_here
from pipework.text.padding import Padding

log = logging.getLogger(__name__)
MODELS = {
    EngineFormat.ONNX: "model.onnx",
    EngineFormat.OPENVINO: "model.xml",
    EngineFormat.TENSORRT: "model.engine",
}


def choose_engine(manifest: Manifest, name: str | None = None) -> EngineRecord:
    """Return the engine of that name, or the one to try first here: see `usable_engines`."""
    return usable_engines(manifest, name)[0]


def usable_engines(manifest: Manifest, name: str | None = None) -> list[EngineRecord]:
    """Return the engine of that name, or all that may be served here, in the order to try them.

    Those that were built elsewhere for a machine like this and are to be proven here come first,
    then the proven ones, the fastest first, and last what this machine is not made for.

    Raises:
        RunFolderError: there is none (of that name), or its parity did not pass.
    """
    found = [engine for engine in manifest.engines if name in (None, engine.name)]
    if not found:
        names = ", ".join(engine.name for engine in manifest.engines) or "none"
        wanted = "an engine" if name is None else f"engine {name!r}"
        message = f"run {manifest.identity.name} lacks {wanted}; engines there: {names}"
        raise RunFolderError(message, "make one: pipe export RUN --to onnx")
    usable = [engine for engine in found if engine.parity is None or engine.parity.passed]
    if not usable:
        message = f"engine {found[0].name} did not pass parity, so it is not served"
        raise RunFolderError(message, "make a proven one: pipe export RUN --to onnx")
    return sorted(usable, key=lambda engine: (not runs_here(engine), engine.parity is not None))


def runs_here(record: EngineRecord) -> bool:
    """Whether this machine has the GPU and the TensorRT that an engine needs, where it does."""
    return record.tensorrt is None or fits_here(record.tensorrt)


def open_proven(
    run: Path, manifest: Manifest, name: str | None = None, *, threads: int | None = None
) -> Engine:
    """Open the engine of that name, or the first that can answer here: see `open_first`."""
    return open_first(run, manifest, name, threads=threads)[1]


def open_first(
    run: Path,
    manifest: Manifest,
    name: str | None = None,
    *,
    prove: bool = False,
    threads: int | None = None,
) -> tuple[EngineRecord, Engine]:
    """Open an engine after checking its parity and the digests of its files and the tokenizer.

    An engine that was built and not run, or that was proven on another kind of processor, is
    proven here first, by the rows that are kept with it; with `prove` any engine is. Without
    a name, one that cannot be opened here is passed over, which is logged; a file that changed is
    not.

    Args:
        run: the run folder.
        manifest: of it.
        name: of an engine.
        prove: whether a proof is made here in any case.
        threads: of the runtime on a CPU; None for as many as the container may use.

    Raises:
        RunFolderError: naming the engine or the file that does not hold.
        MissingDependencyError: the runtime, or the GPU that the engine is for, is not there.
        CheckFailedError: the proof that was made here failed.
        PipeError: of several engines that cannot be opened, why not the first.
    """
    verify_files(run, (manifest.input.tokenizer,))
    reasons: list[PipeError] = []
    for record in usable_engines(manifest, name):
        verify_files(run, record.files)
        try:
            return record, _proven_here(run, manifest, record, prove=prove, threads=threads)
        except PipeError as reason:
            log.warning("engine %s is not served here: %s; %s", record.name, reason, reason.hint)
            reasons.append(reason)
    raise reasons[0]


def _proven_here(
    run: Path, manifest: Manifest, record: EngineRecord, *, prove: bool, threads: int | None
) -> Engine:
    path = run / _file(record, MODELS[record.format])
    try:
        engine = open_engine(path, record, manifest, tensorrt=record.tensorrt, threads=threads)
    except NoGpuError as error:
        how = "proven elsewhere" if record.proven else "built, not run"
        message = f"engine {record.name} was {how}, and it cannot run here: {error}"
        raise NoGpuError(message, error.hint) from error
    try:
        if record.tensorrt is None:  # whose profiles say which calls it takes
            engine.learn_costs(manifest.input.max_length)
        if prove or record.parity is None or record.parity.processor != engine.processor:
            kept = KeptRows.read(run / _file(record, KEPT_ROWS))
            prove_here(engine, record, kept, manifest.task)
    except BaseException:
        engine.close()
        raise
    return engine


def open_engine(
    path: Path,
    variant: Variant,
    manifest: Manifest,
    *,
    whole: bool = False,
    tensorrt: TensorRt | None = None,
    threads: int | None = None,
) -> CollatedEngine:
    """Open an engine's file. Whether it was proven is `open_proven`'s to ask.

    Args:
        path: the engine's main file, named as in MODELS.
        variant: what it is.
        manifest: of the run, for what its inputs look like.
        whole: whether each batch is one call, as a proof over given shapes wants it.
        tensorrt: of a TensorRT engine, what its record says of it.
        threads: of the runtime on a CPU; None for as many as the container may use.

    Raises:
        RunFolderError: the files are not an engine that fits the model's input.
        MissingDependencyError: the runtime, or the GPU that the engine is for, is not there.
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
            from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine  # noqa: PLC0415  (optional)

            return OnnxRuntimeEngine(path, collate, threads=threads)
        case EngineFormat.OPENVINO:
            _need("openvino")
            from pipework.serve.engines.openvino import OpenVinoEngine  # noqa: PLC0415  (optional)

            return OpenVinoEngine(path, collate, precision=variant.precision, threads=threads)
        case EngineFormat.TENSORRT:
            from pipework.serve.engines.tensorrt import TensorRtEngine  # noqa: PLC0415  (optional)

            if tensorrt is None:
                message = f"{path}: the record does not say which TensorRT built it"
                raise RunFolderError(message, "make it again: pipe export RUN --to tensorrt")
            return TensorRtEngine(path, collate, tensorrt)


def _need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        message = f"{module} is not installed, and the engine needs it"
        raise MissingDependencyError(message, "pip install 'pipework[cpu]'")


def _file(record: EngineRecord, wanted: str) -> str:
    found = [file.path for file in record.files if Path(file.path).name == wanted]
    if len(found) != 1:
        message = f"engine {record.name}: expected one file {wanted}, found {len(found)}"
        raise RunFolderError(message, "make it again: pipe export RUN --to onnx")
    return found[0]
