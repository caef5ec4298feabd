"""Where a tritonserver listens, and what its doors are open for."""

import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from uuid import uuid4

from pipework.errors import ConfigError

METRICS_BESIDE = 2  # Triton's own ports are 8000, 8001 and 8002
# Who may register memory or write traces may do more than ask: a region of the python backend's
# own memory can be registered too (CVE-2025-23319, CVE-2025-23320, CVE-2025-23334).
CLOSED = ("shared-memory", "trace", "logging")
KEY = "pipework-launcher"


@dataclass(frozen=True, kw_only=True, slots=True)
class Doors:
    """Where a tritonserver listens; a port 0 stands for any free one."""

    host: str = "127.0.0.1"
    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def chosen(self) -> "Doors":
        """Return the same with a free port in place of each 0.

        That of metrics is the second after the port of HTTP, where that one is given and free.

        Raises:
            ConfigError: a port that is given is taken.
        """
        with ExitStack() as held:  # until all are chosen: a port that is let go may be given again
            http, grpc = (_bound(self.host, port, held) for port in (self.http, self.grpc))
            metrics = self.metrics
            if self.http and not metrics:
                with suppress(ConfigError):
                    metrics = _bound(self.host, self.http + METRICS_BESIDE, held)
            if metrics != self.http + METRICS_BESIDE:
                metrics = _bound(self.host, metrics, held)
        return Doors(host=self.host, http=http, grpc=grpc, metrics=metrics)

    def options(self) -> list[str]:
        """Return them as options of tritonserver."""
        return [
            *(f"--http-address={self.host}", f"--http-port={self.http}"),
            *(f"--grpc-address={self.host}", f"--grpc-port={self.grpc}"),
            *(f"--metrics-address={self.host}", f"--metrics-port={self.metrics}"),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a tritonserver does and lets others do.

    Attributes:
        control: whether clients may load and unload models, and read the index of the repository:
            to Triton that is one door.
        strict: whether a version that does not load keeps all others from being served.
        exit_s: seconds that requests have to end when it is told to stop.
        secret: what the launcher names at the doors that are closed to others. It stands in the
            command line, which other users of the same machine can read.
    """

    control: bool = False
    strict: bool = True
    exit_s: int = 15
    secret: str = field(default_factory=lambda: uuid4().hex, repr=False)

    def options(self) -> list[str]:
        """Return them as options of tritonserver.

        It does not poll: where it does, it starts a version that failed anew at each look, and may
        hang when it is told to stop meanwhile (seen with 2.51).
        """
        closed = CLOSED if self.control else ("model-repository", *CLOSED)
        named = f"{','.join(closed)}:{KEY}={self.secret}"
        return [
            *("--model-control-mode=explicit", "--load-model=*"),
            *(f"--http-restricted-api={named}", f"--grpc-restricted-protocol={named}"),
            *([] if self.strict else ["--exit-on-error=false", "--strict-readiness=false"]),
            f"--exit-timeout-secs={self.exit_s}",
        ]

    def headers(self) -> dict[str, str]:
        """Return what opens the closed doors of HTTP."""
        return {KEY: self.secret}


def _bound(host: str, port: int, held: ExitStack) -> int:
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        message = f"cannot listen on {host}:{port}: {error}"
        raise ConfigError(message, "choose another port (0 for any free one)") from error
    return int(listener.getsockname()[1])
