"""Serve a repository by a tritonserver until told to stop, and say how its models are."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from pipework.errors import ConfigError, NotReadyError
from pipework.record import FILE_NAME as MANIFEST
from pipework.settings import Settings
from serve.config import ServeSettings
from serve.models import Entry, State
from serve.run import Address
from serve.triton_doors import Doors, Rules
from serve.triton_server import TritonServer, stopped_quietly

CONFIG = "config.pbtxt"
LOOK_S, POLL_S, TRIED_S = 2.0, 0.05, 10.0
UNLOADED = "unloaded"  # the reason of a version that was left for a newer one, or taken away
KEPT = ("models", "grace_s")  # the settings that a tritonserver follows
IN_FRONT = "serve it by our own server: leave out --backend triton"


def serve_triton(
    repository: Path,
    settings: ServeSettings,
    *,
    address: Address,
    ready: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    """Serve a repository by a tritonserver until SIGTERM or SIGINT.

    Args:
        repository: what `pipe export --to triton` wrote.
        settings: how to serve it; of them `models` and `grace_s`.
        address: where to listen.
        ready: called once when requests are accepted, with the URL of HTTP.
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
        poll_s=settings.models.poll_s,
        strict=False,  # what loads is served, though another version does not
        exit_s=settings.grace_s,
    )
    doors = Doors(host=address.host, http=address.port, grpc=address.grpc_port)
    with stopped_quietly(), TritonServer(repository, doors, rules) as server:
        first = _first(server)
        if not any(one.state is State.READY for one in first):
            message = "tritonserver loaded no version of any model"
            hint = "mend one, or export the run again: pipe export RUN --to triton"
            raise NotReadyError(message, hint, "\n".join(map(in_a_line, first)))
        for one in first:
            say(in_a_line(one))
        say(f"gRPC on {server.grpc}, metrics on {server.metrics}")
        ready(server.url)
        with _watching(server, first, say):
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


def in_a_line(entry: Entry) -> str:
    """Return the state of a version, with the first line of its reason."""
    reason = next(iter(entry.reason.splitlines()), "")
    named = " ".join(filter(None, (entry.name, entry.version)))
    return f"{named}: {entry.state}{f', {reason}' if reason else ''}"


def settled(before: Sequence[Entry], now: Sequence[Entry]) -> list[Entry]:
    """Return an index in which what is being loaded is as it was before, or is not there yet.

    A tritonserver that polls tries a version that failed again and again.
    """
    known = {(one.name, one.version): one for one in before}
    passing = (State.LOADING, State.UNLOADING)
    found = (known.get((one.name, one.version)) if one.state in passing else one for one in now)
    return [one for one in found if one is not None]


def changes(before: Sequence[Entry], now: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the versions that are new or in another state, and those that are gone."""
    known = {(one.name, one.version): one for one in before}
    for one in now:
        if known.pop((one.name, one.version), None) != one:
            yield one
    for one in known.values():
        if one.reason != UNLOADED:
            yield Entry(
                name=one.name, version=one.version, state=State.UNAVAILABLE, reason="taken away"
            )


def _first(server: TritonServer) -> list[Entry]:
    """Return the index as soon as no version is being loaded, or tried again."""
    end_s = time.monotonic() + TRIED_S
    while True:
        found = server.index()
        if settled((), found) == found or time.monotonic() > end_s:
            return found
        time.sleep(POLL_S)


@contextmanager
def _watching(
    server: TritonServer, known: Sequence[Entry], say: Callable[[str], None]
) -> Iterator[None]:
    """Say what changes, until the block ends."""
    ended = Event()

    def watch() -> None:
        before = known
        while not ended.wait(LOOK_S):
            # Nothing is said by one that is ending.
            now = settled(before, server.index()) or before
            for one in changes(before, now):
                say(in_a_line(one))
            before = now

    thread = Thread(target=watch, name="triton-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _apart(one: Settings, other: Settings, prefix: str = "") -> Iterator[str]:
    for name, value in one:
        default = getattr(other, name)
        if isinstance(value, Settings):
            yield from _apart(value, default, f"{prefix}{name}.")
        elif value != default:
            yield prefix + name
