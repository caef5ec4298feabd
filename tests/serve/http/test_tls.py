"""TLS with certificates that the openssl program makes."""

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from pipework.errors import ConfigError
from pipework.serve.config import SecuritySettings
from pipework.serve.http.tls import read_certificate


def make(folder: Path, *options: str) -> SecuritySettings:
    """Make a certificate of this machine, signed with its own key."""
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


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> SecuritySettings:
    return make(tmp_path_factory.mktemp("tls"))


def test_a_server_with_a_certificate_speaks_tls_and_nothing_else(made, run, start_server):
    server = start_server(
        run,
        f"security.certificate={made.certificate}",
        f"security.private_key={made.private_key}",
    )
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(made.certificate))
    answer = httpx.post(f"{server.url}/v1/predict", json={"texts": ["goal"]}, verify=trusted)
    assert answer.json()["predictions"][0]["label"] == "sport"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/healthz")
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/healthz")
    credentials = grpc.ssl_channel_credentials(made.certificate.read_bytes())
    with triton.InferenceServerClient(server.grpc, creds=credentials, ssl=True) as client:
        assert client.is_server_live()
        assert client.get_server_metadata().name == "pipework"
    client = triton.InferenceServerClient(server.grpc)
    with client, pytest.raises(InferenceServerException, match="UNAVAILABLE"):
        client.get_server_metadata(client_timeout=10)
    assert server.stop() == 0


def test_a_handshake_that_does_not_end_is_cut_off(made, run, start_server):
    server = start_server(
        run,
        f"security.certificate={made.certificate}",
        f"security.private_key={made.private_key}",
        "limits.header_s=0.5",
    )
    host, port = server.url.removeprefix("https://").split(":")
    for piece in (b"", b"\x16\x03\x01"):  # TLS would wait for a minute
        with socket.create_connection((host, int(port)), timeout=20) as opened:
            opened.sendall(piece)
            assert opened.recv(1) == b""


def test_without_files_there_is_no_tls():
    assert read_certificate(SecuritySettings()) is None


@pytest.mark.parametrize("missing", ["certificate", "private_key"])
def test_one_file_without_the_other_is_told(made, missing):
    with pytest.raises(ConfigError, match=f"security.{missing} is not; TLS needs both"):
        read_certificate(made.model_copy(update={missing: None}))


@pytest.mark.parametrize("name", ["certificate", "private_key"])
def test_a_file_that_cannot_be_read_is_told(made, name, tmp_path):
    gone = made.model_copy(update={name: tmp_path / "gone"})
    with pytest.raises(ConfigError, match=rf"security.{name}: .*gone cannot be read: No such file"):
        read_certificate(gone)


def test_the_key_of_another_certificate_is_told(made, tmp_path):
    other = make(tmp_path / "other")
    mixed = made.model_copy(update={"private_key": other.private_key})
    with pytest.raises(ConfigError, match=r"key.pem is not the key of .*certificate.pem"):
        read_certificate(mixed)


@pytest.mark.parametrize("name", ["certificate", "private_key"])
def test_what_is_no_pem_is_told(made, name, tmp_path):
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(ConfigError, match="expected PEM, found something else"):
        read_certificate(made.model_copy(update={name: text}))


def test_a_key_with_a_password_is_told_and_not_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="needs a password, which is not supported"):
        read_certificate(make(tmp_path, "-passout", "pass:secret"))
