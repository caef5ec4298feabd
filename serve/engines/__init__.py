"""Opens the engines of a run folder with the runtime of their format, after a parity check."""

import logging
from itertools import product
from pathlib import Path

from pipework.errors import PipeError, RunFolderError
from pipework.machine import cpu_limit
from pipework.run_folder.change_limits import DEFAULT_LIMITS, ChangeLimits
from pipework.run_folder.engine_record import EngineBuild, EngineRecord, Variant
from pipework.run_folder.files import verify_files, verify_present
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE as ROWS_FILE
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cuda import NoGpuError
from pipework.serve.engines.reproof import prove_here
from pipework.serve.engines.runtimes import runtime_of
from pipework.tasks.change import PredictionChange
from pipework.tasks.task import Task
from pipework.text.padding import Padding

log = logging.getLogger(__name__)
FASTER = 1.1  # smaller ratios are noise


def choose_engine(
    manifest: Manifest, name: str | None = None, limits: ChangeLimits = DEFAULT_LIMITS
) -> EngineRecord:
    """Return the named engine, or the preferred one on this machine: see `usable_engines`."""
    return usable_engines(manifest, name, limits)[0]


def usable_engines(
    manifest: Manifest, name: str | None = None, limits: ChangeLimits = DEFAULT_LIMITS
) -> list[EngineRecord]:
    """Return the named engine, or all engines that may be served here, in the order to try them.

    Engines without a parity record that were built for a machine like this come first if their
    precision keeps the predictions, then those within the limits, the fastest first, then the
    others, and last the engines that this machine cannot run.

    Raises:
        RunFolderError: there is no such engine, its parity check failed, or it was made from
            another model.
    """
    engines = [engine for engine in manifest.engines if name in (None, engine.name)]
    if not engines:
        names = ", ".join(engine.name for engine in manifest.engines) or "none"
        wanted = "engine" if name is None else f"engine {name!r}"
        message = f"run {manifest.identity.name} has no {wanted}; its engines: {names}"
        other = "use one of these, or " if manifest.engines else ""
        raise RunFolderError(message, f"{other}export one: pipe export RUN --to onnx")
    current = [engine for engine in manifest.current_engines if name in (None, engine.name)]
    if not current:
        manifest.check_current(engines)
    # An engine without a result was built for another machine; it is checked when it is opened.
    usable = [engine for engine in current if engine.parity is None or engine.parity.passed]
    if not usable:
        message = f"engine {current[0].name} did not pass parity, so it is not served"
        raise RunFolderError(message, "export one with parity: pipe export RUN --to onnx")
    return sorted(
        usable,
        key=lambda engine: (
            not runs_here(engine),
            not limits.allow(engine, manifest.task),
            engine.parity is not None,
        ),
    )


def faster_engines(
    manifest: Manifest, served: EngineRecord, limits: ChangeLimits = DEFAULT_LIMITS
) -> dict[str, str]:
    """Return the gain and the cost of each faster engine beyond the limits, by name.

    These engines run on this machine, and their speeds were measured on the same processor.
    """
    task = manifest.task
    costs = dict[str, str]()
    for engine in manifest.engines:
        parity, speed = engine.parity, engine.speed
        if parity is None or limits.allow(engine, task) or not runs_here(engine):
            continue
        if speed is None or served.speed is None or speed.processor != served.speed.processor:
            continue
        ratio = speed.texts_per_s / served.speed.texts_per_s
        if ratio >= FASTER and speed.interval[0] > served.speed.interval[1]:
            change = limits.describe_change(engine, task, parity)
            costs[engine.name] = f"{ratio:.1f} times as fast, changes {change}"
    return costs


def runs_here(record: EngineRecord) -> bool:
    """Return whether an engine was built for a machine like this."""
    return runtime_of(record.format).fits_here(record.built)


def server_engines(*, on_gpu: bool, instances: int | None = None) -> tuple[int, int]:
    """Return how many engines a server opens for a model, and the threads of each on a CPU."""
    count = instances or (1 if on_gpu else min(2, cpu_limit()))
    return count, -(-cpu_limit() // count)  # rounded up, so that no CPU is idle


def open_proven(
    run: Path, manifest: Manifest, name: str | None = None, *, threads: int | None = None
) -> Engine:
    """Open the named engine, or the first that works on this machine: see `open_first`."""
    return open_first(run, manifest, name, threads=threads)[1]


def open_first(
    run: Path,
    manifest: Manifest,
    name: str | None = None,
    *,
    prove: bool = False,
    threads: int | None = None,
    limits: ChangeLimits = DEFAULT_LIMITS,
) -> tuple[EngineRecord, CollatedEngine]:
    """Open an engine after checking its parity and the digests of its files and the tokenizer.

    Parity is checked here, on the stored reference rows, if the engine has no parity record or was
    checked on another kind of processor, with another version of the runtime or another number of
    threads, and always with `prove`. Without a name, engines that cannot be opened are skipped with
    a warning, and engines beyond the limits are opened only if no other engine can be; a changed
    file is always an error.

    Raises:
        RunFolderError: an engine or a file is wrong; the message names it.
        MissingDependencyError: the runtime or the GPU of the engine is missing.
        CheckFailedError: the parity check failed.
        PipeError: no engine can be opened; this is the error of the first.
    """
    verify_files(run, (manifest.input.tokenizer,))
    verify_present(run, manifest.model.checkpoint, newer=True)
    task = manifest.task
    failures = dict[str, PipeError]()
    # An engine beyond the limits, as recorded or as measured here, is tried again after all others.
    bounds = (limits, None) if name is None else (None,)
    for bound, record in product(bounds, usable_engines(manifest, name, limits)):
        known = record.parity is not None
        if record.name in failures or (bound and known and not bound.allow(record, task)):
            continue
        verify_files(run, record.files)
        try:
            engine, here = _proven_here(run, manifest, record, prove=prove, threads=threads)
        except PipeError as reason:
            log.warning("engine %s is not served here: %s; %s", record.name, reason, reason.hint)
            failures[record.name] = reason
            continue
        if name is None and not limits.allow(record, task, here):
            _warn_beyond(limits, record, here, task)
            if bound:
                engine.close()
                continue
        if name is None:
            for faster, cost in faster_engines(manifest, record, limits).items():
                log.info("faster engine %s: %s; to use it: --engine %s", faster, cost, faster)
        log.info("engine %s of run %s is open", record.name, manifest.identity.name)
        return record, engine
    raise next(iter(failures.values()))


def _warn_beyond(
    limits: ChangeLimits, record: EngineRecord, here: PredictionChange | None, task: Task
) -> None:
    if (change := here or record.parity) is not None:
        text = limits.describe_change(record, task, change)
        log.warning("engine %s exceeds the limits of changes: it changes %s", record.name, text)


def _proven_here(
    run: Path, manifest: Manifest, record: EngineRecord, *, prove: bool, threads: int | None
) -> tuple[CollatedEngine, PredictionChange | None]:
    """Open an engine; return it with its changes if they are measured here."""
    path = run / _file(record, runtime_of(record.format).model_file)
    try:
        engine = open_engine(path, record, manifest, built=record.built, threads=threads)
    except NoGpuError as error:
        status = "proven elsewhere" if record.proven else "built, not run"
        message = f"engine {record.name} was {status}, and it cannot run here: {error}"
        raise NoGpuError(message, error.hint) from error
    try:
        engine.learn_costs(manifest.input.max_length)
        here: PredictionChange | None = None
        if prove or not _checked_so(record, engine, threads or cpu_limit()):
            kept = ReferenceRows.read(run / _file(record, ROWS_FILE))
            here = prove_here(engine, record, kept, manifest.task)
    except BaseException:
        engine.close()
        raise
    return engine, here


def _checked_so(record: EngineRecord, engine: CollatedEngine, threads: int) -> bool:
    """Whether an engine was checked on such a processor, with this runtime and these threads."""
    parity, version = record.parity, runtime_of(record.format).version()
    if parity is None or (parity.processor, parity.runtime) != (engine.processor, version):
        return False
    return engine.on_gpu or threads in parity.threads


def open_engine(
    path: Path,
    variant: Variant,
    manifest: Manifest,
    *,
    whole: bool = False,
    built: EngineBuild | None = None,
    threads: int | None = None,
) -> CollatedEngine:
    """Open the file of an engine without a parity check; `open_proven` makes that.

    Raises:
        RunFolderError: the file is not an engine that fits the model's input.
        MissingDependencyError: the runtime or the GPU of the engine is missing.
    """
    collate = Collate(
        layout=variant.layout,
        padding=Padding.of(manifest.input),
        spans=manifest.model.takes_spans,
        whole=whole,
        row_offsets=manifest.task.row_offsets,
        longest=manifest.input.max_length,
    )
    runtime = runtime_of(variant.format)
    return runtime.open(path, variant, collate, built, threads or cpu_limit())


def _file(record: EngineRecord, wanted: str) -> str:
    paths = [file.path for file in record.files if Path(file.path).name == wanted]
    if len(paths) != 1:
        message = f"engine {record.name}: expected one file {wanted}, found {len(paths)}"
        raise RunFolderError(message, "export it again: pipe export RUN --to onnx")
    return paths[0]
