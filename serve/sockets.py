"""The addresses and the bound sockets of a server."""

import logging
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

from pipework.errors import ConfigError
from pipework.serve.http.auth import HostNames
from pipework.serve.http.tls import Certificate

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenAddress:
    """Address to listen on: host, HTTP port and gRPC port. Port 0 selects a free port.

    Raises:
        ConfigError: the two ports are equal.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 8001

    def __post_init__(self) -> None:
        if self.port and self.port == self.grpc_port:
            message = f"--port and --grpc-port are both {self.port}: expected different ports"
            raise ConfigError(message, "choose another --grpc-port (0 for any free one)")

    def grpc_host(self, *, public: bool) -> str:
        """Return the host that gRPC listens on: this machine only, unless it may be public."""
        if public or is_loopback(self.host):
            return self.host
        host = "::1" if ":" in self.host else "127.0.0.1"
        # The limits of gRPC's library apply to a connection when the client has acknowledged them.
        # A client that does not can make it allocate gigabytes with a few MB of headers.
        log.warning(
            "gRPC listens on %s: its library cannot limit the memory for headers of hostile "
            "clients. Behind a proxy, or in a network without such clients, add "
            "--set security.public_grpc=true",
            host,
        )
        return host


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundAddress:
    """Addresses of a running server."""

    url: str
    grpc: str

    def __str__(self) -> str:
        """Return both addresses in one line, the URL first."""
        return f"{self.url} and gRPC on {self.grpc}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedPort:
    """A bound socket that keeps a port free, and whether other processes listen on it too."""

    socket: socket.socket
    shared: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSockets:
    """The bound sockets of a server."""

    http: socket.socket
    grpc: ReservedPort
    certificate: Certificate | None

    @property
    def address(self) -> BoundAddress:
        """The addresses of the sockets."""
        url = f"{'https' if self.certificate else 'http'}://{bound_address(self.http)}"
        return BoundAddress(url=url, grpc=bound_address(self.grpc.socket))

    def host_names(self, names: Iterable[str] | None) -> HostNames:
        """Return the allowed names of the server; by default any, on a loopback address none."""
        local = is_loopback(self.http.getsockname()[0])
        return HostNames(() if names is None and local else names)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def bound_socket(host: str, port: int, option: str) -> Iterator[socket.socket]:
    """Bind a TCP socket to an address.

    Raises:
        ConfigError: it cannot be bound.
    """
    # Bound before the model is loaded, so that a port in use is reported at once. The servers
    # listen later, so that no client connects before the server can answer.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # IPPROTO_TCP must be explicit: only then asyncio disables Nagle's algorithm, which would delay
    # each response by 40 ms (delayed acknowledgement of the client).
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        _bind(listener, (host, port), option)
        yield listener


def _bind(listener: socket.socket, address: tuple[str, int], option: str) -> None:
    try:
        _bind_unused(listener, address)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot listen on {address[0]}:{address[1]}: {reason}"
        raise ConfigError(message, f"choose another {option} (0 for any free one)") from error


def _bind_unused(listener: socket.socket, address: tuple[str, int]) -> None:
    # With SO_REUSEADDR two servers that are loading models could bind the same port, because the
    # conflict appears only when one of them listens. So it is only the fallback, for a port whose
    # last connections are still closing.
    try:
        listener.bind(address)
    except OSError:
        reuse_address(listener)
        listener.bind(address)


def reuse_address(listener: socket.socket) -> None:
    """Allow to bind the address of a socket again while its connections close."""
    # Connections inherit this option, so that the port can be bound again while they close.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def bound_address(listener: socket.socket) -> str:
    """Return the address of a socket, as in a URL."""
    return address_text(*listener.getsockname()[:2])


def address_text(host: str, port: int) -> str:
    """Return an address as in a URL; IPv6 hosts have brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def shared_socket(host: str, port: int, option: str) -> Iterator[socket.socket]:
    """Bind a socket to an address that other sockets of this user may share.

    It reserves the address as long as it is open, and does not listen.

    Raises:
        ConfigError: the address is in use or cannot be bound.
    """
    with bound_socket(host, port, option) as first:
        address = host, int(first.getsockname()[1])
        family = first.family
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(shared, address, option)
        yield shared


def another_socket(shared: socket.socket) -> socket.socket:
    """Return another socket of a shared address; the system spreads connections over them."""
    other = socket.socket(shared.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind(shared.getsockname())
    return other
