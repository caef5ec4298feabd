"""What is served becomes models: a run folder, or a repository."""

from functools import partial
from pathlib import Path

from pipework.errors import MissingDependencyError
from pipework.manifest import read_manifest
from serve.answerer import Answerer
from serve.config import ServeSettings
from serve.keeper import Keeper
from serve.models import Models
from serve.predictor import Predictor
from serve.repository import Behind, VersionFolder, is_repository


def open_models(target: Path, settings: ServeSettings) -> Models:
    """Open a run folder, or every model of a repository.

    Raises:
        RunFolderError: the run folder is not complete, unchanged and proven; of a repository, no
            model of it can be served.
        MissingDependencyError: the runtime of the run folder's engine is not installed.
    """
    control = settings.models.control
    if not is_repository(target):
        return Models([Predictor(target, queue=settings.queue)], control=control)
    opening = partial(open_version, settings=settings)
    keeper = Keeper(target, opening, poll_s=settings.models.poll_s)
    return Models((), keeper, control=control)


def open_version(found: VersionFolder, settings: ServeSettings) -> Answerer:
    """Open a version of a repository, prove it by the rows kept with it, and have it answer once.

    Raises:
        RunFolderError: a file, a digest or a proof does not hold; the message names it.
        CheckFailedError: it answers differently from the checkpoint.
        MissingDependencyError: the engine's runtime is not there.
    """
    found.check_inside(read_manifest(found.folder))
    if found.behind is not None:
        raise _no_triton(found.behind, settings)
    predictor = Predictor(
        found.folder, name=found.name, version=found.version, queue=settings.queue, prove=True
    )
    try:
        predictor.warm()
    except BaseException:
        predictor.close()
        raise
    return predictor


def _no_triton(behind: Behind, settings: ServeSettings) -> MissingDependencyError:
    # A version with its logits computed by a remote tritonserver is opened in place of this.
    where = settings.triton_url or "no tritonserver"
    message = f"its logits are computed by {behind.name} of a tritonserver, and {where} is asked"
    return MissingDependencyError(message, "name it: --set triton_url=HOST:PORT")
