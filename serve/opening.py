"""What is served becomes models: a run folder, or a repository."""

from functools import partial
from pathlib import Path

from pipework.engine_record import EngineRecord
from pipework.errors import MissingDependencyError
from pipework.evaluation import Engine
from pipework.manifest import Manifest, read_manifest
from serve.answerer import Answerer
from serve.config import ServeSettings
from serve.engines import open_first
from serve.engines.remote import open_remote
from serve.keeper import Keeper
from serve.models import Models
from serve.predictor import Opening, Predictor
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
        MissingDependencyError: the engine's runtime is not there, or no tritonserver is named.
        NotReadyError: the tritonserver that computes its logits does not answer.
    """
    found.check_inside(read_manifest(found.folder))
    opening: Opening = partial(open_first, prove=True)
    if found.behind is not None:
        opening = partial(_open_there, behind=found.behind, url=settings.triton_url)
    predictor = Predictor(
        found.folder,
        name=found.name,
        version=found.version,
        queue=settings.queue,
        opening=opening,
    )
    try:
        predictor.warm()
    except BaseException:
        predictor.close()
        raise
    return predictor


def _open_there(
    run: Path,
    manifest: Manifest,
    *,
    threads: int | None,  # noqa: ARG001  (Triton has its own)
    behind: Behind,
    url: str,
) -> tuple[EngineRecord, Engine]:
    """Open the engine that a tritonserver has, as a version of another model."""
    if not url:
        message = f"its logits are computed by {behind.name} of a tritonserver, and none is named"
        raise MissingDependencyError(message, "name it: --set triton_url=HOST:PORT")
    return manifest.engines[0], open_remote(run, manifest, behind, url)
