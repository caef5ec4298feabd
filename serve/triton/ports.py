"""Ports and command line options of a tritonserver."""

import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from uuid import uuid4

from pipework.errors import ConfigError

METRICS_OFFSET = 2  # Triton's default ports are 8000, 8001 and 8002
# Restricted because these APIs allow more than inference: clients could register the shared memory
# of the python backend itself (CVE-2025-23319, CVE-2025-23320, CVE-2025-23334).
RESTRICTED = ("shared-memory", "trace", "logging")
ACCESS_HEADER = "pipework-launcher"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """Host and ports of a tritonserver; port 0 means any free port."""

    host: str = "127.0.0.1"
    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def chosen(self) -> "Ports":
        """Return a copy with a free port in place of each 0.

        If the HTTP port is not 0, the metrics port is that plus 2, if free.

        Raises:
            ConfigError: a port is already in use.
        """
        with ExitStack() as held:  # keeps all ports until the last is chosen, so that they differ
            http, grpc = (_bound(self.host, port, held) for port in (self.http, self.grpc))
            metrics = self.metrics
            if self.http and not metrics:
                with suppress(ConfigError):
                    metrics = _bound(self.host, self.http + METRICS_OFFSET, held)
            if metrics != self.http + METRICS_OFFSET:
                metrics = _bound(self.host, metrics, held)
        return Ports(host=self.host, http=http, grpc=grpc, metrics=metrics)

    def options(self) -> list[str]:
        """Return the command line options of tritonserver."""
        return [
            *(f"--http-address={self.host}", f"--http-port={self.http}"),
            *(f"--grpc-address={self.host}", f"--grpc-port={self.grpc}"),
            *(f"--metrics-address={self.host}", f"--metrics-port={self.metrics}"),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Behaviour and access rules of a tritonserver.

    Attributes:
        control: whether clients may load and unload models and read the repository index; Triton
            restricts these together.
        strict: whether the server fails if one version cannot be loaded.
        exit_s: seconds for running requests to finish after a stop signal.
        secret: value of the header that opens the restricted APIs for the launcher. Other users of
            the same machine can read it in the command line.
    """

    control: bool = False
    strict: bool = True
    exit_s: int = 15
    secret: str = field(default_factory=lambda: uuid4().hex, repr=False)

    def options(self) -> list[str]:
        """Return the command line options of tritonserver."""
        # Explicit model control: with polling, tritonserver retries failed versions at each poll,
        # and may hang if it is stopped during that (seen with 2.51).
        restricted = RESTRICTED if self.control else ("model-repository", *RESTRICTED)
        rule = f"{','.join(restricted)}:{ACCESS_HEADER}={self.secret}"
        return [
            *("--model-control-mode=explicit", "--load-model=*"),
            *(f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"),
            *([] if self.strict else ["--exit-on-error=false", "--strict-readiness=false"]),
            f"--exit-timeout-secs={self.exit_s}",
        ]

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that open the restricted APIs."""
        return {ACCESS_HEADER: self.secret}


def _bound(host: str, port: int, held: ExitStack) -> int:
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        message = f"cannot listen on {host}:{port}: {error}"
        raise ConfigError(message, "choose another port (0 for any free one)") from error
    return int(listener.getsockname()[1])
