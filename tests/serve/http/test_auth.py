"""API keys of a real server."""

import httpx
import pytest

from pipework.client import Client
from pipework.client.transport import KEY_HINT
from pipework.errors import PipeError
from pipework.serve.http.auth import HostNames, is_public

KEYS = {"PIPEWORK_API_KEYS": "first-key-0123456789,second-key-0123456789"}
BODY = {"texts": ["goal"]}
UNAUTHORIZED = {
    "error": "expected an API key, found none; send Authorization: Bearer KEY, or X-API-Key: KEY"
}


@pytest.fixture(scope="module")
def guarded(run, start_server):
    return start_server(run, **KEYS)


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer first-key-0123456789"}, {"X-API-Key": "second-key-0123456789"}],
)
def test_every_endpoint_accepts_a_valid_key(guarded, headers):
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        assert client.post("/v1/predict", json=BODY).status_code == 200
        for path in ("/metrics", "/v2", "/v2/models/topics"):
            assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/v2", "/v2/", "/v2/models/topics", "/v2/models/topics/infer", "/v1/predict"),
        *("/nowhere", "//metrics", "/%6detrics", "/docs/../metrics", "/docs/static", "/healthz/"),
        *("/docs/static/..%2f..%2fmetrics", "/v2/health/live/..", "/METRICS", "/healthz%00"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_requests_without_a_key_are_answered_401(guarded, path, method):
    answer = httpx.request(method, guarded.url + path)
    if path.startswith("/docs/static/"):  # public files of a package
        assert answer.status_code in {404, 405}
        return
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert method == "HEAD" or answer.json() == UNAUTHORIZED


@pytest.mark.parametrize("key", ["", "wrong-key"])
def test_the_client_reports_a_wrong_key_with_a_hint(guarded, key):
    for url in (guarded.url, f"grpc://{guarded.grpc}"):
        with Client(url, key=key) as client, pytest.raises(PipeError) as caught:
            client.predict(["rain"])
        found = "an unknown key" if key else "none"
        assert str(caught.value) == f"expected an API key, found {found}"
        assert (type(caught.value), caught.value.hint) == (PipeError, KEY_HINT)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"])
def test_health_checks_need_no_key(guarded, path):
    assert httpx.get(guarded.url + path).status_code == 200


def test_the_pages_need_no_key(guarded):
    page = httpx.get(f"{guarded.url}/docs")
    assert page.status_code == 200
    assert httpx.get(f"{guarded.url}/docs/static/swagger-ui.css").status_code == 200
    assert is_public("/")


def test_the_openapi_title_has_no_model_name_if_keys_are_required(guarded, server):
    assert httpx.get(f"{guarded.url}/openapi.json").json()["info"]["title"] == "pipework"
    assert "topics" in httpx.get(f"{server.url}/openapi.json").json()["info"]["title"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("topics.example:8000", True),
        ("Topics.Example", True),
        ("", True),  # HTTP/1.0 without a Host; no browser sends it
    ],
)
def test_only_names_of_the_server_addresses_and_localhost_are_hosts(host, allowed):
    fault = HostNames(["topics.example"]).fault(host.encode())
    assert (fault is None) is allowed
    assert HostNames().fault(host.encode()) is None
    assert fault is None or fault.http_status == 403


def test_a_page_of_a_name_that_resolves_to_a_local_server_reads_nothing(server, start_server, run):
    headers = {"Host": "evil.example"}
    body = {"texts": ["goal"]}
    refused = httpx.get(f"{server.url}/v1/status", headers=headers)
    assert refused.status_code == 403
    assert 'security.hosts=["NAME"]' in refused.json()["error"]
    assert httpx.post(f"{server.url}/v1/predict", headers=headers, json=body).status_code == 403
    assert httpx.get(f"{server.url}/readyz", headers=headers).status_code == 200
    allowing = start_server(run, 'security.hosts=["evil.example"]')
    assert httpx.get(f"{allowing.url}/v1/status", headers=headers).status_code == 200
