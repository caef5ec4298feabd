"""A worker: a process with its own engines that answers requests on the address of the server."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pipework.serve.config import ServeSettings
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.shutdown import exit_on_signal, grace_period
from pipework.serve.models.open_models import open_models
from pipework.serve.observability.observers import Observers
from pipework.serve.run import run_server
from pipework.serve.sockets import ServerSockets, another_socket, reuse_address
from pipework.serve.workers.child_process import ChildProcess, Placement
from pipework.serve.workers.group import WorkerFolder, WorkerGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """What a worker needs. It inherits the sockets.

    Attributes:
        number: index of the worker; its replacement has the same.
        sockets: the sockets that reserve the addresses of the server.
    """

    number: int
    target: Path
    settings: ServeSettings
    placement: Placement
    sockets: ServerSockets
    keys: ApiKeys
    files: WorkerFolder

    def child(self) -> ChildProcess:
        """Return the process."""
        name = f"worker {self.number}"
        return ChildProcess(name=name, title=f"pipe-worker-{self.number}", run=self.run)

    def run(self, ready: Callable[[], None]) -> None:
        """Answer requests until a signal; `ready` is called when it accepts them."""
        self.placement.apply()
        unloaded = self.files.unloaded()
        with (
            exit_on_signal(),
            ExitStack() as stack,
            open_models(self.target, self.settings, unloaded) as models,
            Observers(models, self.settings) as observers,
        ):
            stack.enter_context(grace_period(models.stopping, self.settings.grace_s))
            group = WorkerGroup(self.files, self.number, models, observers, unloaded, ready)
            # Bound now, so that connections never wait for a worker that cannot start.
            own = stack.enter_context(another_socket(self.sockets.http))
            reuse_address(own)
            sockets = replace(self.sockets, http=own)
            run_server(models, self.settings, observers, sockets, self.keys, group)
            group.write_counts()
