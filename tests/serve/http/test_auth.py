"""A server with keys, over real connections."""

import socket

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from pipework.serve.http.auth import is_open

KEYS = {"PIPEWORK_API_KEYS": "first-key-0123456789,second-key-0123456789"}
ASKED = {"texts": ["goal"]}
REFUSED = {
    "error": "expected an API key, found none; send Authorization: Bearer KEY, or X-API-Key: KEY"
}


@pytest.fixture(scope="module")
def guarded(run, start_server):
    return start_server(run, **KEYS)


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer first-key-0123456789"}, {"X-API-Key": "second-key-0123456789"}],
)
def test_a_key_opens_every_door(guarded, headers):
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        assert client.post("/v1/predict", json=ASKED).status_code == 200
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
def test_without_one_nothing_else_is_said(guarded, path, method):
    answer = httpx.request(method, guarded.url + path)
    if path.startswith("/docs/static/"):  # files of a package: that there is none is no secret
        assert answer.status_code in {404, 405}
        return
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert method == "HEAD" or answer.json() == REFUSED


def test_a_wrong_key_is_refused_and_not_repeated(guarded):
    wrong = {"X-API-Key": "first-key-012345678"}
    answer = httpx.post(f"{guarded.url}/v1/predict", json=ASKED, headers=wrong)
    assert answer.status_code == 401
    assert "found one that is not known" in answer.text
    assert "first-key" not in answer.text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"])
def test_health_needs_none(guarded, path):
    assert httpx.get(guarded.url + path).status_code == 200


def test_the_pages_need_none(guarded):
    page = httpx.get(f"{guarded.url}/docs")
    assert page.status_code == 200
    assert httpx.get(f"{guarded.url}/docs/static/swagger-ui.css").status_code == 200
    assert is_open("/")


def test_the_description_of_a_guarded_server_names_no_model(guarded, server):
    assert httpx.get(f"{guarded.url}/openapi.json").json()["info"]["title"] == "pipework"
    assert "topics" in httpx.get(f"{server.url}/openapi.json").json()["info"]["title"]


def test_the_uninvited_are_refused_before_their_body_comes(guarded):
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        opened.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n")
        assert opened.recv(12) == b"HTTP/1.1 401"


def test_grpc_needs_the_same_keys(guarded):
    with triton.InferenceServerClient(guarded.grpc) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="expected an API key, found none"):
            client.get_model_metadata("topics")
        key = {"authorization": "Bearer first-key-0123456789"}
        assert client.get_model_metadata("topics", headers=key).name == "topics"
