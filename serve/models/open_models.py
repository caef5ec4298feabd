"""Opens the models of a run folder or a model repository."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from pipework.errors import ConfigError, RunFolderError
from pipework.machine import cuda_devices
from pipework.run_folder.cascade import FOLDER
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.files import MANIFEST_FILE as MANIFEST
from pipework.run_folder.manifest import read_classifier
from pipework.scoring.evaluation import Engine
from pipework.serve.config import EngineSettings, QueueSettings, ServeSettings
from pipework.serve.engines import open_first, open_proven, server_engines
from pipework.serve.engines.first_stage import cascade_of, open_first_stage
from pipework.serve.engines.recheck import Rechecks
from pipework.serve.models.registry import Models
from pipework.serve.models.repository import VersionFolder, is_repository
from pipework.serve.models.repository_watcher import RepositoryWatcher
from pipework.serve.scheduling.predictor import Predictor
from pipework.serve.scheduling.scheduler import Scheduler
from pipework.text.encoding import open_encoder

log = logging.getLogger(__name__)


def open_models(
    target: Path, settings: ServeSettings, unloaded: frozenset[str] = frozenset()
) -> Models:
    """Open the model of a run folder, or every model of a repository.

    Raises:
        ConfigError: the settings name an engine of a repository.
        RunFolderError: the run folder is incomplete, changed or without parity, or no model of
            the repository can be served.
        MissingDependencyError: the runtime of the run folder's engine is not installed.
    """
    if not is_repository(target):
        _check_run(target)
        predictor = open_predictor(target, settings.engine, queue=settings.queue)
        predictor.keep_outputs(settings.cache.bytes)
        return Models([predictor], settings=settings.models)
    if settings.engine.name is not None:
        message = f"{target} is a repository, whose versions have one engine each"
        raise ConfigError(message, "remove --engine")
    open_one = partial(open_version, settings=settings)
    poll_s = settings.models.poll_s
    watcher = RepositoryWatcher(target, open_one, poll_s=poll_s, unloaded=unloaded)
    return Models((), watcher, settings=settings.models)


def _check_run(target: Path) -> None:
    unfinished = (target / "config.toml").exists()
    if target.is_dir() and not (target / MANIFEST).exists() and not unfinished:
        message = f"{target} has no {MANIFEST} and no models: neither a run folder nor a repository"
        hint = f"expected a run folder, or a repository with NAME/VERSION/{MANIFEST}"
        if (target / "config.json").exists():  # of transformers
            hint = f"a checkpoint becomes a run folder by: pipe import {target} --out RUN"
        raise RunFolderError(message, hint)


def open_version(folder: VersionFolder, settings: ServeSettings) -> Predictor:
    """Open a version of a repository, check its parity on the stored rows and warm it up.

    Raises:
        RunFolderError: a file, a digest or a parity record is wrong; the message names it.
        CheckFailedError: its predictions differ from the checkpoint's.
        MissingDependencyError: the engine's runtime is not installed.
    """
    manifest = read_classifier(folder.folder)
    folder.check_inside(manifest)
    if manifest.cascade is not None:
        first = replace(folder, folder=folder.folder / FOLDER)
        first.check_inside(read_classifier(first.folder))
    predictor = open_predictor(
        folder.folder,
        EngineSettings(recheck_s=settings.engine.recheck_s),
        name=folder.name,
        version=folder.version,
        queue=settings.queue,
        prove=True,
    )
    predictor.keep_outputs(settings.cache.bytes)
    try:
        predictor.warm()
    except BaseException:
        predictor.close()
        raise
    return predictor


def open_predictor(
    run: Path,
    engine: EngineSettings | None = None,
    *,
    name: str | None = None,
    version: str | None = None,
    queue: QueueSettings | None = None,
    prove: bool = False,
) -> Predictor:
    """Open a run with the named engine, or the first engine that works on this machine.

    Raises:
        RunFolderError: a file, a digest or a parity record is wrong; the message names it.
        MissingDependencyError: the engine's runtime is not installed.
        CheckFailedError: the parity check at opening failed.
    """
    manifest = read_classifier(run)
    queue = queue or QueueSettings()
    engine = engine or EngineSettings()
    cascade = cascade_of(manifest, engine.name)
    chosen = engine.name if cascade is None else cascade.engine
    _, threads = server_engines(on_gpu=False, instances=queue.instances)
    record, first = open_first(run, manifest, chosen, prove=prove, threads=threads, limits=engine)
    instances, _ = server_engines(on_gpu=first.on_gpu, instances=queue.instances)
    if first.on_gpu:
        _report_gpu(first.processor, *cuda_devices())
    with ExitStack() as on_error:
        engines: list[Engine] = [on_error.enter_context(first)]
        reopen = partial(open_proven, run, manifest, record.name, threads=threads)
        engines.extend(on_error.enter_context(reopen()) for _ in range(instances - 1))
        encoder = open_encoder(run, manifest)
        scheduler = Scheduler(
            engines,
            queue.for_engine(first),
            reopen=reopen,
            group_lengths=record.layout is Layout.PADDED,
            rechecks=Rechecks.open(run, manifest, record, first, engine.recheck_s),
        )
        on_error.pop_all()
    if cascade is None:
        return Predictor(manifest, record, encoder, scheduler, name=name, version=version)
    version = version or str(int(cascade.seal[:12], 16))  # another first stage is another version
    predictor = Predictor(manifest, record, encoder, scheduler, name=name, version=version)
    with ExitStack() as on_error:
        on_error.enter_context(predictor)
        predictor.answer_with(
            open_first_stage(run, cascade, prove=prove, recheck_s=engine.recheck_s)
        )
        on_error.pop_all()
    return predictor


@cache
def _report_gpu(name: str, device: str = "0", *idle: str) -> None:
    """Report once the GPU that computes, and how many others do not."""
    if idle:
        text = "engines compute on GPU %s (%s); %d other GPUs are idle: --workers auto uses all"
        log.warning(text, device, name, len(idle))
    else:
        log.info("engines compute on GPU %s (%s)", device, name)
