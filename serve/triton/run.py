"""Serve a repository by a tritonserver until told to stop, and say how its models are."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pipework.errors import ConfigError, NotReadyError
from pipework.run_folder.files import FILE_NAME as MANIFEST
from pipework.serve.config import ServeSettings
from pipework.serve.http.shutdown import ending_at_once
from pipework.serve.models.registry import State
from pipework.serve.run import Address, Listening
from pipework.serve.triton.ports import Doors, Rules
from pipework.serve.triton.repository_sync import CONFIG, Watch, in_a_line
from pipework.serve.triton.server import TritonServer
from pipework.settings import Settings

KEPT = ("models", "grace_s")  # the settings that a tritonserver follows
IN_FRONT = "serve it by our own server: leave out --backend triton"


def serve_triton(
    repository: Path,
    settings: ServeSettings,
    *,
    address: Address,
    ready: Callable[[Listening], None],
    say: Callable[[str], None],
) -> None:
    """Serve a repository by a tritonserver until SIGTERM or SIGINT.

    Args:
        repository: what `pipe export --to triton` wrote.
        settings: how to serve it; of them `models` and `grace_s`.
        address: where to listen.
        ready: called once when requests are accepted, with where.
        say: is told each version's state, and each change of it, in a line.

    Raises:
        ConfigError: that is no repository, a port is taken, or a setting is not for Triton.
        MissingDependencyError: there is no tritonserver.
        NotReadyError: it did not start, no version loaded, or it ended by itself.
    """
    check_repository(repository)
    check_settings(settings)
    rules = Rules(
        control=settings.models.control,
        strict=False,  # what loads is served, though another version does not
        exit_s=settings.grace_s,
    )
    doors = Doors(host=address.host, http=address.port, grpc=address.grpc_port)
    with ending_at_once(), TritonServer(repository, doors, rules) as server:
        first = server.index()
        if not any(one.state is State.READY for one in first):
            message = "tritonserver loaded no version of any model"
            hint = "mend one, or export the run again: pipe export RUN --to triton"
            raise NotReadyError(message, hint, "\n".join(map(in_a_line, first)))
        for one in first:
            say(in_a_line(one))
        say(f"metrics on {server.metrics}")
        ready(Listening(url=server.url, grpc=server.grpc))
        with Watch(server, repository, first, say=say, poll_s=settings.models.poll_s):
            server.wait()


def check_repository(path: Path) -> None:
    """Check that a folder is a repository of models.

    Raises:
        ConfigError: it is not; for a run folder the hint says how to make one of it.
    """
    how = "pipe export RUN --to triton --repository DIR"
    if not path.is_dir():
        message = f"{path} is not a folder: expected a repository of models"
        raise ConfigError(message, f"make one: {how}")
    if (path / MANIFEST).is_file():
        message = f"{path} is a run folder, and tritonserver serves a repository of models"
        raise ConfigError(message, f"make one: {how.replace('RUN', str(path))}")
    if not any(path.glob(f"*/{CONFIG}")):
        message = f"{path} holds no model: no folder in it has a {CONFIG}"
        raise ConfigError(message, f"add one: {how}")


def check_settings(settings: ServeSettings) -> None:
    """Check that nothing is asked for that a tritonserver does not do.

    Raises:
        ConfigError: naming a setting that only our own server follows.
    """
    if os.environ.get("PIPEWORK_API_KEYS"):
        message = "PIPEWORK_API_KEYS is set, and tritonserver checks no API keys"
        raise ConfigError(message, IN_FRONT)
    given = settings.model_copy(update={name: getattr(ServeSettings(), name) for name in KEPT})
    apart = [*_apart(given, ServeSettings())]
    if apart:
        message = f"--backend triton does not follow the setting {apart[0]}"
        raise ConfigError(message, IN_FRONT)


def _apart(one: Settings, other: Settings, prefix: str = "") -> Iterator[str]:
    for name, value in one:
        default = getattr(other, name)
        if isinstance(value, Settings):
            yield from _apart(value, default, f"{prefix}{name}.")
        elif value != default:
            yield prefix + name
