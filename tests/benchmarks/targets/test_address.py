import pytest

from pipework.benchmarks.targets.address import TargetAddress
from pipework.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("PIPEWORK_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://host", "host", 80, ""),
        ("https://host/", "host", 443, ""),
        ("grpc://host/m", "host", 8001, "/m"),
        ("grpcs://host:9/m/1", "host", 9, "/m/1"),
        ("http://[::1]:8000/v1/predict/", "::1", 8000, "/v1/predict"),
        ("http://host/a?b=c", "host", 80, "/a?b=c"),
    ],
)
def test_a_url_has_a_default_port_and_a_path_without_trailing_slash(url, host, port, path):
    found = TargetAddress.of(url)
    assert (found.host, found.port, found.path, found.credentials) == (host, port, path, "")


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://", "http://host:99999", "grpc:"])
def test_an_invalid_url_is_reported(url):
    with pytest.raises(
        ConfigError, match="is not a valid http, https, grpc or grpcs URL"
    ) as caught:
        TargetAddress.of(url)
    assert str(caught.value).startswith(url)
    assert caught.value.hint


def test_a_key_with_a_line_end_is_refused_and_not_printed(monkeypatch):
    monkeypatch.setenv("PIPEWORK_API_KEY", "secret\n")
    with pytest.raises(ConfigError, match="API key: expected printable ASCII") as caught:
        TargetAddress.of("http://host")
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_the_certificate_of_a_server_is_verified():
    context = TargetAddress.of("https://host").tls()
    assert context.check_hostname


def test_the_password_of_an_invalid_url_is_not_printed():
    with pytest.raises(ConfigError, match=r"^http://\*\*\*@host:port is not a valid http"):
        TargetAddress.of("http://user:secret@host:port")
