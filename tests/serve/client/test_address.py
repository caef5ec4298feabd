import pytest

from pipework.errors import ConfigError
from pipework.serve.client.address import Address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", Address(scheme="http", host="127.0.0.1:8000")),
        ("https://host/", Address(scheme="https", host="host")),
        ("grpc://[::1]:8001", Address(scheme="grpc", host="[::1]:8001")),
        (
            "grpcs://host:1/v2/models/a.b/versions/2",
            Address(scheme="grpcs", host="host:1", model="a.b", version="2"),
        ),
        ("http://host:1/v2/models/m/", Address(scheme="http", host="host:1", model="m")),
    ],
)
def test_a_url_names_the_server_and_may_name_a_model(url, expected):
    found = Address.of(url)
    assert found == expected
    assert (found.grpc, found.secure) == (url.startswith("grpc"), url.split(":")[0][-1] == "s")
    assert url.startswith(found.url)


@pytest.mark.parametrize(
    "url", ["", "host:8000", "ftp://host", "http://", "http://host/v1/predict"]
)
def test_another_url_is_told_what_was_expected(url):
    with pytest.raises(ConfigError, match="expected http://, https://, grpc:// or grpcs://"):
        Address.of(url)
