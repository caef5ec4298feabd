"""What is served becomes models: a run folder, or a repository."""

from functools import partial
from pathlib import Path

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.files import FILE_NAME as MANIFEST
from pipework.run_folder.manifest import read_classifier
from pipework.serve.config import ServeSettings
from pipework.serve.engines.openers import Here, OnTriton, Opener
from pipework.serve.models.registry import Models
from pipework.serve.models.repository import VersionFolder, is_repository
from pipework.serve.models.repository_watcher import Keeper
from pipework.serve.scheduling.model_protocol import Answerer
from pipework.serve.scheduling.predictor import Predictor


def open_models(target: Path, settings: ServeSettings) -> Models:
    """Open a run folder, or every model of a repository.

    Raises:
        RunFolderError: the run folder is not complete, unchanged and proven; of a repository, no
            model of it can be served.
        MissingDependencyError: the runtime of the run folder's engine is not installed.
    """
    control = settings.models.control
    if not is_repository(target):
        _check_run(target)
        return Models([Predictor(target, queue=settings.queue)], control=control)
    opening = partial(open_version, settings=settings)
    keeper = Keeper(target, opening, poll_s=settings.models.poll_s)
    return Models((), keeper, control=control)


def _check_run(target: Path) -> None:
    if target.is_dir() and not (target / MANIFEST).exists():
        what = "no repository and no run folder, or its training did not finish"
        message = f"{target} holds no {MANIFEST} and no models: {what}"
        hint = f"expected a run folder, or a repository with NAME/VERSION/{MANIFEST}"
        raise RunFolderError(message, hint)


def open_version(found: VersionFolder, settings: ServeSettings) -> Answerer:
    """Open a version of a repository, prove it by the rows kept with it, and have it answer once.

    Raises:
        RunFolderError: a file, a digest or a proof does not hold; the message names it.
        CheckFailedError: it answers differently from the checkpoint.
        MissingDependencyError: the engine's runtime is not there, or no tritonserver is named.
        NotReadyError: the tritonserver that computes does not answer.
    """
    found.check_inside(read_classifier(found.folder))
    predictor = Predictor(
        found.folder,
        name=found.name,
        version=found.version,
        queue=settings.queue,
        opener=_opener(found, settings),
    )
    try:
        predictor.warm()
    except BaseException:
        predictor.close()
        raise
    return predictor


def _opener(found: VersionFolder, settings: ServeSettings) -> Opener:
    if found.behind is None:
        return Here(prove=True)
    if not settings.triton_url:
        message = f"its logits are computed by {found.behind.name}, a model of a tritonserver"
        raise MissingDependencyError(message, "name the server: --set triton_url=HOST:PORT")
    return OnTriton(behind=found.behind, url=settings.triton_url)
