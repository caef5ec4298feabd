"""A URL says how a server is asked."""

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
def test_over_http_the_path_says_the_protocol(url, kind, path):
    found = target(url)
    assert (type(found).__name__, found.path) == (kind, path)
    assert is_url(url)


@pytest.mark.parametrize(
    ("url", "model", "version"),
    [
        ("grpc://a:1/m", "m", ""),
        ("grpc://a:1/m/3", "m", "3"),
        ("grpcs://a:1/v2/models/m%20n/versions/3", "m n", "3"),
    ],
)
def test_over_grpc_the_path_names_the_model(url, model, version):
    found = target(url)
    assert (type(found).__name__, found.model, found.version) == ("GrpcTarget", model, version)
    assert (found.host, found.port) == ("a", 1)


def test_what_is_not_known_is_told_with_what_to_do():
    with pytest.raises(ConfigError, match="nothing is known of /embed") as caught:
        target("http://a:1/embed")
    assert "--template" in caught.value.hint
    with pytest.raises(ConfigError, match="names no model") as caught:
        target("grpc://a:1")
    assert "grpc://a:1/NAME" in caught.value.hint
    assert not is_url("runs/first")
