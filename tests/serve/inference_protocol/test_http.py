"""tritonclient asks our server as it asks Triton."""

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        yield client


@pytest.fixture
def name(server):
    return httpx.post(f"{server.url}/v1/predict", json={"texts": ["rain"]}).json()["model"]


def tensor(texts, *, binary=True):
    array = np.array([text.encode() for text in texts], np.object_)[:, None]
    found = triton.InferInput("text", list(array.shape), "BYTES")
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def expected(server, texts):
    answer = httpx.post(f"{server.url}/v1/predict", json={"texts": texts}).json()
    return answer["predictions"]


def test_truncated_texts_are_reported_by_every_api_and_counted(client, server, name):
    texts = ["rain", "rain " * 40, "sun", "goal " * 300]

    def counted():
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith("pipework_truncated_texts_total{")]
        return float(line.split()[-1])

    before = counted()
    assert [one["truncated"] for one in expected(server, texts)] == [False, True, False, True]
    for binary in (True, False):
        found = client.infer(name, [tensor(texts, binary=binary)])
        assert found.get_response()["parameters"] == {"truncated": "1,3"}
        assert found.as_numpy("logits").shape == (4, 3)
    outputs = [triton.InferRequestedOutput("logits", class_count=2)]
    found = client.infer(name, [tensor(texts)], outputs=outputs)
    assert found.get_response()["parameters"] == {"truncated": "1,3"}
    with triton_grpc.InferenceServerClient(server.grpc) as grpc_client:
        sent = triton_grpc.InferInput("text", [4], "BYTES")
        sent.set_data_from_numpy(np.array([text.encode() for text in texts], np.object_))
        parameters = grpc_client.infer(name, [sent]).get_response().parameters
    assert parameters["truncated"].string_param == "1,3"
    assert counted() == before + 10
    assert "parameters" not in client.infer(name, [tensor(texts[:1])]).get_response()
    assert counted() == before + 10


def test_statistics_count_requests_and_texts_and_their_time(client, name):
    def counted():
        (of_version,) = client.get_inference_statistics(name)["model_stats"]
        return of_version

    before = counted()
    client.infer(name, [tensor(["rain", "sun"])])
    with pytest.raises(InferenceServerException):
        client.infer(name, [tensor(["rain"])], timeout=1)
    after = counted()
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["execution_count"] > before["execution_count"]
    assert after["last_inference"] > before["last_inference"]
    spent, spent_before = after["inference_stats"], before["inference_stats"]
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output", "fail"):
        assert spent[part]["count"] == spent_before[part]["count"] + 1, part
        assert spent[part]["ns"] > spent_before[part]["ns"], part
    assert client.get_inference_statistics()["model_stats"] == [after]
    assert client.get_inference_statistics(name, after["version"])["model_stats"] == [after]
    with pytest.raises(InferenceServerException, match="unknown version '9'"):
        client.get_inference_statistics(name, "9")


def test_health_endpoints_have_the_bodies_of_the_protocol(server, name):
    base = f"{server.url}/v2"
    version = httpx.get(f"{base}/models/{name}").json()["versions"][0]
    assert httpx.get(f"{base}/health/live").json() == {"live": True}
    assert httpx.get(f"{base}/health/ready").json() == {"ready": True}
    for path in (name, f"{name}/versions/{version}"):
        ready = httpx.get(f"{base}/models/{path}/ready")
        assert ready.json() == {"name": name, "ready": True}
    missing = httpx.get(f"{base}/models/other/ready")
    assert (missing.status_code, [*missing.json()]) == (404, ["error"])


def test_a_slash_at_the_end_of_a_path_is_not_redirected(server):
    assert httpx.get(f"{server.url}/v2/").json() == httpx.get(f"{server.url}/v2").json()
    assert httpx.get(f"{server.url}/v1/status/").status_code == 404
