import pytest

from pipework.client.address import ServerUrl
from pipework.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", ServerUrl(scheme="http", host="127.0.0.1:8000")),
        ("https://host/", ServerUrl(scheme="https", host="host")),
        ("grpc://[::1]:8001", ServerUrl(scheme="grpc", host="[::1]:8001")),
        (
            "grpcs://host:1/v2/models/a.b/versions/2",
            ServerUrl(scheme="grpcs", host="host:1", model="a.b", version="2"),
        ),
        ("http://host:1/v2/models/m/", ServerUrl(scheme="http", host="host:1", model="m")),
    ],
)
def test_a_url_has_a_server_and_an_optional_model(url, expected):
    found = ServerUrl.of(url)
    assert found == expected
    assert (found.grpc, found.secure) == (url.startswith("grpc"), url.split(":")[0][-1] == "s")
    assert url.startswith(found.url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:8000", "ftp://host", "http://", "http://host/v1/predict"),
        *("http://host:99999", "grpc://host:port", "http://[::1", "http://ü..host"),
        *("http://host/v2/models/\ud800", "http://\ud800"),
    ],
)
def test_an_invalid_url_is_refused_with_the_expected_format(url):
    with pytest.raises(ConfigError, match="expected http://, https://, grpc:// or grpcs://"):
        ServerUrl.of(url)


def test_a_password_in_a_url_is_refused_and_not_printed():
    with pytest.raises(ConfigError, match=r"^http://\*\*\*@host:1: expected http://") as caught:
        ServerUrl.of("http://user:secret@host:1")
    assert "secret" not in str(caught.value)
