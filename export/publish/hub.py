"""Upload a published folder to a model hub, in one commit.

huggingface_hub determines the hub (HF_ENDPOINT, or else huggingface.co) and the token (HF_TOKEN, or
`hf auth login`).
"""

import logging
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.errors import HTTPError as ConnectionFailed  # type: ignore[attr-defined]  # of httpx or httpx2
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # not in its __all__
    disable_progress_bars,
    get_session,
    validate_repo_id,
)

from pipework.errors import ConfigError, without_password
from pipework.export.publish.folder import check_new, publish_folder
from pipework.progress import Progress, counted

REACH_S = 10  # timeout of the first connection
ENGINES = ("onnx/", "openvino/")  # in the repository, these folders have no other files
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"
REFUSED = {
    401: "the token is invalid or has expired",
    403: "the token may not write there",
    404: "there is no such repository or revision, or the token may not read it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRepository:
    """A repository of models: ORG/NAME, and the branch or None for the default branch."""

    name: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> "HubRepository":
        """Read ORG/NAME or ORG/NAME@REVISION.

        Raises:
            ConfigError: the hub allows no such name.
        """
        name, at, revision = text.partition("@")
        try:
            validate_repo_id(name)
            reason = None if name.count("/") == 1 else "there is no organization or user"
        except HFValidationError as error:
            reason = str(error).partition(": ")[0]
        if reason is None and at and not revision:
            reason = "the revision after @ is empty"
        if reason is not None:
            message = f"--to hf://{text}: expected hf://ORG/NAME[@REVISION]: {reason}"
            raise ConfigError(message, "for example --to hf://my-team/topics@v2")
        return cls(name=name, revision=revision or None)

    def upload_command(self, folder: Path) -> str:
        """Return the command that uploads a folder later."""
        revision = [] if self.revision is None else ["--revision", self.revision]
        deleted = [word for place in ENGINES for word in ("--delete", f"{place}*")]
        words = [*revision, *deleted]
        return shlex.join(["hf", "upload", self.name, str(folder), ".", "--private", *words])


def publish_hub(
    run: Path, repository: HubRepository, progress: Progress
) -> tuple[Sequence[str], str | None]:
    """Upload the folder of `publish_folder`; without a connection, write it to the folder NAME.

    Returns:
        Lines about the engines and the commit; and the command that uploads the folder, None if it
        was uploaded.

    Raises:
        PipeError: as `publish_folder`.
        ConfigError: the hub cannot be reached, or refuses the token or the upload.
    """
    disable_progress_bars()
    # Its warnings contain the signed addresses of uploads.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    reason = _unreachable()
    if reason is not None:
        return _keep_folder(run, repository, reason, progress)
    token = _token()
    with tempfile.TemporaryDirectory(prefix="pipework-hub-") as temporary:
        folder = Path(temporary) / "folder"
        published = publish_folder(run, folder, progress, repository.name)
        with _hub_errors(repository):
            url = _upload(folder, repository, token, progress)
    return (*published.lines(repository.name), url), None


def _unreachable() -> str | None:
    """Return why the hub cannot be used; None if it can."""
    if constants.HF_HUB_OFFLINE:
        return ""
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)
    except ConnectionFailed as error:
        return f"{without_password(constants.ENDPOINT)} cannot be reached: {error}"
    return None


def _keep_folder(
    run: Path, repository: HubRepository, reason: str, progress: Progress
) -> tuple[Sequence[str], str]:
    folder = Path(repository.name.rpartition("/")[2])
    check_new(folder)
    published = publish_folder(run, folder, progress, repository.name)
    command = repository.upload_command(folder)
    if reason:
        message = f"{reason}; nothing was uploaded, the folder is {folder}"
        raise ConfigError(message, f"upload it later: {command}")
    progress.note("HF_HUB_OFFLINE is set: nothing was uploaded")
    return published.lines(str(folder)), command


def _token() -> str:
    token = get_token()
    if token is None:
        message = "there is no token for the hub"
        raise ConfigError(message, LOG_IN)
    if not (token.isascii() and token.isprintable()):  # the error of the library would print it
        message = "the token for the hub has characters that no token has"
        raise ConfigError(message, LOG_IN)
    return token


@contextmanager
def _hub_errors(repository: HubRepository) -> Iterator[None]:
    """Convert the errors of the hub; neither a token nor the address of an upload is printed."""
    try:
        yield
    except (ConnectionFailed, OSError, RuntimeError, ValueError) as error:
        wrapped = error.__cause__ if isinstance(error, RuntimeError) else None  # of a file
        cause = wrapped or error
        status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0
        text = str(cause).strip() or type(cause).__name__
        reason = f"status {status}" if status else text.splitlines()[0]
        place = f"{without_password(constants.ENDPOINT)}/{repository.name}"
        message = f"the upload to {place} failed: "
        hint = LOG_IN if status in REFUSED else "try again: files that were uploaded are skipped"
        raise ConfigError(message + REFUSED.get(status, reason), hint) from error


def _upload(folder: Path, repository: HubRepository, token: str, progress: Progress) -> str:
    """Make the repository equal to the folder where both have files; return the commit's URL.

    A new repository is private; the visibility of an old one does not change.
    """
    api, name, revision = HfApi(token=token), repository.name, repository.revision
    new = not api.repo_exists(name)
    api.create_repo(name, private=True, exist_ok=True)
    if new:
        progress.note(f"{name} is a new private repository: make it public on its settings page")
    if revision is not None:
        api.create_branch(name, branch=revision, exist_ok=True)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    old = [file for file in api.list_repo_files(name, revision=revision) if file not in files]
    size = sum(path.stat().st_size for path in files.values())
    progress.note(f"uploading {counted(len(files), 'file')}, {size / 1e6:.1f} MB, to {name}")
    commit = api.create_commit(
        name,
        operations=[
            *(CommitOperationDelete(file) for file in old if file.startswith(ENGINES)),
            *(CommitOperationAdd(file, path) for file, path in files.items()),
        ],
        commit_message="Publish with pipework",
        revision=revision,
    )
    return without_password(str(commit.commit_url))
