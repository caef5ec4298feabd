"""Serves a repository with tritonserver until a stop signal, and reports model states."""

import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from pipework.errors import ConfigError, NotReadyError
from pipework.run_folder.files import MANIFEST_FILE as MANIFEST
from pipework.serve.config import ServeSettings
from pipework.serve.http.shutdown import exit_on_signal
from pipework.serve.models.registry import State
from pipework.serve.models.repository import CONFIG
from pipework.serve.sockets import BoundAddress, ListenAddress
from pipework.serve.triton.repository_sync import RepositorySync, describe_entry
from pipework.serve.triton.server import Ports, ServerOptions, TritonServer
from pipework.settings import setting_keys

FOLLOWED = ("models", "grace_s", "security.public_grpc")  # settings of a tritonserver
OWN_SERVER_HINT = "use pipework's own server: omit --backend triton"


def serve_triton(
    repository: Path,
    settings: ServeSettings,
    *,
    address: ListenAddress,
    ready: Callable[[BoundAddress], None],
    report: Callable[[str], None],
) -> None:
    """Serve a repository with tritonserver until SIGTERM or SIGINT.

    Raises:
        ConfigError: the folder is not a repository, a port is taken, or a setting does not apply.
        MissingDependencyError: tritonserver is not installed.
        NotReadyError: it did not start, loaded no version, or exited unexpectedly.
    """
    check_repository(repository)
    check_settings(settings)
    options = ServerOptions(
        control=settings.models.control,
        strict=False,  # serve the other versions if one cannot be loaded
        exit_s=settings.grace_s,
    )
    grpc_host = address.grpc_host(public=settings.security.public_grpc)
    host, http, grpc = address.host, address.port, address.grpc_port
    ports = Ports(host=host, grpc_host=grpc_host, http=http, grpc=grpc)
    with exit_on_signal(), TritonServer(repository, ports, options) as server:
        first = server.index()
        if not any(entry.state is State.READY for entry in first):
            message = "tritonserver loaded no version of any model"
            hint = "fix a model, or export the run again: pipe export RUN --to triton"
            raise NotReadyError(message, hint, "\n".join(map(describe_entry, first)))
        for entry in first:
            report(describe_entry(entry))
        report(f"metrics on {server.metrics}")
        ready(BoundAddress(url=server.url, grpc=server.grpc))
        with RepositorySync(
            server, repository, first, report=report, poll_s=settings.models.poll_s
        ):
            server.wait()


def check_repository(path: Path) -> None:
    """Check that a folder is a model repository.

    Raises:
        ConfigError: it is not; for a run folder the hint has the export command.
    """
    export = "pipe export RUN --to triton --repository DIR"
    if not path.is_dir():
        message = f"{path} is not a folder: expected a model repository"
        raise ConfigError(message, f"create it: {export}")
    if (path / MANIFEST).is_file():
        message = f"{path} is a run folder, but tritonserver needs a model repository"
        raise ConfigError(message, f"create it: {export.replace('RUN', str(path))}")
    if not any(path.glob(f"*/{CONFIG}")):
        message = f"{path} has no models: none of its folders has a {CONFIG}"
        raise ConfigError(message, f"add one: {export}")


def check_settings(settings: ServeSettings) -> None:
    """Check that all settings apply to tritonserver.

    Raises:
        ConfigError: a setting applies to our own server only; the message names it.
    """
    if os.environ.get("PIPEWORK_API_KEYS"):
        message = "PIPEWORK_API_KEYS is set, but tritonserver does not check API keys"
        raise ConfigError(message, OWN_SERVER_HINT)
    defaults = ServeSettings()
    for name in setting_keys(ServeSettings):
        value = attrgetter(name)
        if value(settings) != value(defaults) and not name.startswith(FOLLOWED):
            message = f"--backend triton does not support the setting {name}"
            raise ConfigError(message, OWN_SERVER_HINT)
