"""TLS certificate of the HTTP and gRPC servers, and the TLS handshakes of HTTP connections."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from pipework.errors import ConfigError
from pipework.serve.config import SecuritySettings

BACKLOG = 2048  # connections that wait to be accepted; a dropped one is tried again after 1 s
ACCEPT_RETRY_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """A certificate chain and the private key of its first certificate, as PEM files."""

    chain: Path
    private_key: Path

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for a gRPC server."""
        pair = (self.private_key.read_bytes(), self.chain.read_bytes())
        return grpc.ssl_server_credentials([pair])


def read_certificate(settings: SecuritySettings) -> Certificate | None:
    """Read and check the certificate of the settings; None if they have none.

    Raises:
        ConfigError: only one of the two files is set, a file cannot be read or is not PEM, the key
            needs a password, or the key does not match the certificate.
    """
    chain, key = settings.certificate, settings.private_key
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        present, absent = ("private_key", "certificate") if key else ("certificate", "private_key")
        message = f"security.{present} is set, but security.{absent} is not; TLS needs both"
        raise ConfigError(message)
    for name, path in (("certificate", chain), ("private_key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            message = f"security.{name}: {path} cannot be read: {error.strerror}"
            raise ConfigError(message) from error
    _check_pair(chain, key)
    return Certificate(chain=chain, private_key=key)


def _check_pair(chain: Path, key: Path) -> None:
    encrypted = False

    def no_password() -> str:
        # Without a callback OpenSSL prompts for the password on the terminal.
        nonlocal encrypted
        encrypted = True
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, no_password)
    except (ssl.SSLError, OSError) as error:
        if encrypted:
            message = f"security.private_key: {key} needs a password, which is not supported"
            raise ConfigError(message, "remove it: openssl pkey -in KEY -out PLAIN") from error
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            message = f"security.private_key: {key} does not match the certificate {chain}"
        else:
            message = (
                f"security.certificate: {chain} with {key}: expected PEM, found something else"
            )
        raise ConfigError(message) from error


class TlsListener:
    """Accepts connections with TLS, with a limited number of handshakes at a time.

    A server of asyncio would start any number of handshakes before its protocol is called.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        *,
        timeout_s: float,
        most: int,
    ) -> None:
        """Start to accept connections from a bound socket.

        Args:
            listener: the socket.
            context: the certificate.
            protocol: creates the protocol of a connection.
            timeout_s: seconds for a handshake.
            most: maximum number of handshakes; if there are more, the oldest is aborted.
        """
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._most = most
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accepting = self._loop.create_task(self._accept(listener))

    def close(self) -> None:
        """Accept no more connections, and abort handshakes."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is left."""
        await asyncio.wait((self._accepting, *self._handshakes))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(listener)
            except OSError:  # too many open files
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            task = self._loop.create_task(self._handshake(client))
            self._handshakes[task] = None
            task.add_done_callback(self._ended)
            if len(self._handshakes) > self._most:
                oldest = next(iter(self._handshakes))
                self._ended(oldest)
                oldest.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _handshake(self, client: socket.socket) -> None:
        try:
            with suppress(OSError):  # includes the errors of TLS and the timeout
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    client,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout_s,
                )
        except asyncio.CancelledError:
            client.close()
            raise
