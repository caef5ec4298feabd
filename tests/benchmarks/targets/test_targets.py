"""The URL determines the protocol of a target."""

import pytest

from pipework.benchmarks.targets import is_url, target
from pipework.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "kind", "path"),
    [
        ("http://a:1", "RestTarget", "/v1/predict"),
        ("http://a:1/v1/predict", "RestTarget", "/v1/predict"),
        ("https://a/v2/models/m", "ProtocolTarget", "/v2/models/m/infer"),
        ("http://a/v2/models/m/versions/2", "ProtocolTarget", "/v2/models/m/versions/2/infer"),
        ("http://a/v2/models/m%20n/infer", "ProtocolTarget", "/v2/models/m%20n/infer"),
    ],
)
def test_the_path_of_an_http_url_determines_the_protocol(url, kind, path):
    parsed = target(url)
    assert (type(parsed).__name__, parsed.path) == (kind, path)
    assert is_url(url)


@pytest.mark.parametrize(
    ("url", "model", "version"),
    [
        ("grpc://a:1/m", "m", ""),
        ("grpc://a:1/m/3", "m", "3"),
        ("grpcs://a:1/v2/models/m%20n/versions/3", "m n", "3"),
    ],
)
def test_the_path_of_a_grpc_url_contains_the_model(url, model, version):
    parsed = target(url)
    assert (type(parsed).__name__, parsed.model, parsed.version) == ("GrpcTarget", model, version)
    assert (parsed.address.host, parsed.address.port) == ("a", 1)


def test_an_unknown_endpoint_is_reported_with_a_hint():
    with pytest.raises(ConfigError, match="unknown endpoint /embed") as caught:
        target("http://a:1/embed")
    assert "--template" in caught.value.hint
    with pytest.raises(ConfigError, match="has no model name") as caught:
        target("grpc://a:1")
    assert "grpc://a:1/NAME" in caught.value.hint
    assert not is_url("runs/first")
