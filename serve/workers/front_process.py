"""A front process: answers requests over HTTP and gRPC, and tokenizes their texts."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pipework.serve.config import ServeSettings
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.shutdown import GracePeriod, exit_on_signal
from pipework.serve.models.registry import Models
from pipework.serve.observability.metrics import ServerMetrics, SharedMetrics
from pipework.serve.observability.observers import Observers
from pipework.serve.observability.recent_latency import RecentLatency
from pipework.serve.run import run_server
from pipework.serve.sockets import ServerSockets
from pipework.serve.workers.engine_mirror import EngineMirror
from pipework.serve.workers.shared_memory import SharedMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontProcess:
    """What a front process needs. It inherits the sockets and the memory.

    Attributes:
        number: index of the process.
        settings: the settings, with the limits of one process.
        sockets: its own sockets.
        keys: the API keys.
        memory: the memory of all processes.
        metrics: the files of the metrics.
        engine_socket: path of the socket of the engine process.
    """

    number: int
    settings: ServeSettings
    sockets: ServerSockets
    keys: ApiKeys
    memory: SharedMemory
    metrics: SharedMetrics
    engine_socket: Path

    def run(self, ready: Callable[[], None]) -> None:
        """Answer requests until SIGTERM or SIGINT; `ready` is called when it accepts them."""
        self.metrics.count_as(self.number)
        mirror = EngineMirror(self.memory, self.number, self.engine_socket, self.settings)
        mirror.ready = ready
        recent = RecentLatency(samples=self.memory.recent_PRX, process=self.number)
        recent.close()  # deletes the samples of an earlier process
        with (
            exit_on_signal(),
            ExitStack() as stack,
            Models((), mirror, control=self.settings.models.control) as models,
        ):
            stack.enter_context(GracePeriod(models.stopping, self.settings.grace_s))
            mirror.open()
            metrics = ServerMetrics(models, self.metrics)
            with Observers(models, self.settings, metrics=metrics, recent=recent) as observers:
                run_server(models, self.settings, observers, self.sockets, self.keys, mirror)
