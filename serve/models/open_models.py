"""Opens the models of a run folder or a model repository."""

from functools import partial
from pathlib import Path

from pipework.errors import ConfigError, RunFolderError
from pipework.run_folder.files import MANIFEST_FILE as MANIFEST
from pipework.run_folder.manifest import read_classifier
from pipework.serve.config import ServeSettings
from pipework.serve.models.registry import Models
from pipework.serve.models.repository import VersionFolder, is_repository
from pipework.serve.models.repository_watcher import RepositoryWatcher
from pipework.serve.scheduling.model_protocol import ServedModel
from pipework.serve.scheduling.predictor import open_predictor


def open_models(
    target: Path, settings: ServeSettings, unloaded: frozenset[str] = frozenset()
) -> Models:
    """Open the model of a run folder, or every model of a repository.

    Args:
        target: the run folder or the repository.
        settings: the settings of the server.
        unloaded: models of a repository that clients have unloaded.

    Raises:
        ConfigError: the settings name an engine of a repository.
        RunFolderError: the run folder is incomplete, changed or without parity, or no model of
            the repository can be served.
        MissingDependencyError: the runtime of the run folder's engine is not installed.
    """
    control = settings.models.control
    if not is_repository(target):
        _check_run(target)
        predictor = open_predictor(target, settings.engine, queue=settings.queue)
        return Models([predictor], control=control)
    if settings.engine.name is not None:
        message = f"{target} is a repository, whose versions have one engine each"
        raise ConfigError(message, "remove --engine")
    open_one = partial(open_version, settings=settings)
    poll_s = settings.models.poll_s
    watcher = RepositoryWatcher(target, open_one, poll_s=poll_s, unloaded=unloaded)
    return Models((), watcher, control=control)


def _check_run(target: Path) -> None:
    unfinished = (target / "config.toml").exists()
    if target.is_dir() and not (target / MANIFEST).exists() and not unfinished:
        message = f"{target} has no {MANIFEST} and no models: neither a run folder nor a repository"
        hint = f"expected a run folder, or a repository with NAME/VERSION/{MANIFEST}"
        if (target / "config.json").exists():  # of transformers
            hint = f"a checkpoint becomes a run folder by: pipe import {target} --out RUN"
        raise RunFolderError(message, hint)


def open_version(folder: VersionFolder, settings: ServeSettings) -> ServedModel:
    """Open a version of a repository, check its parity on the stored rows and warm it up.

    Raises:
        RunFolderError: a file, a digest or a parity record is wrong; the message names it.
        CheckFailedError: its predictions differ from those of the checkpoint.
        MissingDependencyError: the engine's runtime is not installed.
    """
    folder.check_inside(read_classifier(folder.folder))
    predictor = open_predictor(
        folder.folder,
        name=folder.name,
        version=folder.version,
        queue=settings.queue,
        prove=True,
    )
    try:
        predictor.warm()
    except BaseException:
        predictor.close()
        raise
    return predictor
