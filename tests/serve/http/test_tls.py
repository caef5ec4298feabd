"""TLS with certificates created by the openssl program."""

import shutil
import signal
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from pipework.client import Client
from pipework.errors import ConfigError, PipeError
from pipework.serve.config import SecuritySettings
from pipework.serve.http.tls import read_certificate


def create(folder: Path, *options: str) -> SecuritySettings:
    """Create a self-signed certificate for this machine."""
    if not shutil.which("openssl"):
        pytest.skip("the openssl program is absent: apt-get install openssl")
    folder.mkdir(exist_ok=True)
    key, chain = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(chain), *(options or ("-nodes",))),
        ],
        check=True,
        capture_output=True,
    )
    return SecuritySettings(certificate=chain, private_key=key)


def settings(certificate: SecuritySettings) -> tuple[str, str]:
    """Return the settings of a server with the certificate."""
    files = certificate.model_dump(include={"certificate", "private_key"})
    first, second = (f"security.{name}={path}" for name, path in files.items())
    return first, second


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> SecuritySettings:
    return create(tmp_path_factory.mktemp("tls"))


def test_a_server_with_a_certificate_requires_tls(certificate, run, start_server):
    server = start_server(run, *settings(certificate))
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(certificate.certificate))
    answer = httpx.post(f"{server.url}/v1/predict", json={"texts": ["goal"]}, verify=trusted)
    assert answer.json()["predictions"][0]["label"] == "sport"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/healthz")
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/healthz")
    credentials = grpc.ssl_channel_credentials(certificate.certificate.read_bytes())
    with triton.InferenceServerClient(server.grpc, creds=credentials, ssl=True) as client:
        assert client.is_server_live()
        assert client.get_server_metadata().name == "pipework"
    client = triton.InferenceServerClient(server.grpc)
    with client, pytest.raises(InferenceServerException, match="UNAVAILABLE"):
        client.get_server_metadata(client_timeout=10)
    assert server.stop() == 0


def test_the_client_reports_a_mismatch_of_tls_in_one_line(certificate, run, start_server, server):
    secured = start_server(run, *settings(certificate))
    address = secured.url.removeprefix("https://")
    urls = [f"http://{address}", f"https://{address}"]  # the second: not a trusted certificate
    urls += [f"grpc://{secured.grpc}", f"grpcs://{secured.grpc}"]
    urls += [server.url.replace("http", "https"), f"grpcs://{server.grpc}"]
    for url in urls:
        with Client(url, retries=2) as client, pytest.raises(PipeError) as caught:
            client.predict(["rain"])
        assert type(caught.value) is PipeError
        assert str(caught.value).startswith(f"{url} cannot be reached: ")
        assert "\n" not in str(caught.value)
        assert "with the same TLS setting?" in caught.value.hint


def test_an_incomplete_handshake_times_out(certificate, run, start_server):
    server = start_server(run, *settings(certificate), "limits.header_s=0.5")
    host, port = server.url.removeprefix("https://").split(":")
    for piece in (b"", b"\x16\x03\x01"):  # without the timeout it would take a minute
        with socket.create_connection((host, int(port)), timeout=20) as opened:
            opened.sendall(piece)
            assert opened.recv(1) == b""


def test_a_client_cannot_fill_the_log(certificate, run, start_server):
    server = start_server(run, *settings(certificate))
    for address in (server.url.removeprefix("https://"), server.grpc):
        host, port = address.split(":")
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 100, b"\0" * 1000):
            with socket.create_connection((host, int(port)), timeout=20) as opened:
                opened.sendall(data)
    context = ssl.create_default_context()
    for _ in range(3):  # the client refuses the certificate
        with pytest.raises(ssl.SSLError), socket.create_connection((host, int(port))) as opened:
            context.wrap_socket(opened, server_hostname=host)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.finish().stderr == ""


def test_the_oldest_of_too_many_handshakes_is_aborted(certificate, run, start_server):
    server = start_server(run, *settings(certificate), "limits.connections=3")
    host, port = server.url.removeprefix("https://").split(":")
    trusted = ssl.create_default_context(cafile=str(certificate.certificate))
    with ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
            for _ in range(20)
        ]
        for connection in silent[:17]:
            assert connection.recv(1) == b""
        answer = httpx.get(f"{server.url}/healthz", verify=trusted)
        assert answer.status_code == 200
        silent[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)


def test_tls_is_off_without_files():
    assert read_certificate(SecuritySettings()) is None


@pytest.mark.parametrize("missing", ["certificate", "private_key"])
def test_one_file_without_the_other_is_an_error(certificate, missing):
    with pytest.raises(ConfigError, match=f"is set, but security.{missing} is not; TLS needs both"):
        read_certificate(certificate.model_copy(update={missing: None}))


def test_the_key_of_another_certificate_is_an_error(certificate, tmp_path):
    other = create(tmp_path / "other")
    mixed = certificate.model_copy(update={"private_key": other.private_key})
    with pytest.raises(
        ConfigError, match=r"key.pem does not match the certificate .*certificate.pem"
    ):
        read_certificate(mixed)


def test_a_key_with_a_password_is_an_error_without_a_prompt(tmp_path):
    with pytest.raises(ConfigError, match="needs a password, which is not supported"):
        read_certificate(create(tmp_path, "-passout", "pass:secret"))
