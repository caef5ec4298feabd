"""TLS certificate of the HTTP and gRPC servers."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from pipework.errors import ConfigError
from pipework.serve.config import SecuritySettings


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
        _check_readable(name, path)
    _check_pair(chain, key)
    return Certificate(chain=chain, private_key=key)


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        message = f"security.{name}: {path} cannot be read: {error.strerror}"
        raise ConfigError(message) from error


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
