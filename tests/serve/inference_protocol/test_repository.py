"""tritonclient lists, loads and unloads models of a running server, as it does with Triton's."""

import asyncio
import time

import grpc
import httpx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

CONTROL = ("models.control=true", "models.poll_s=0")
READY = {"name": "topics", "version": "1", "state": "READY"}


@pytest.fixture
def controlled(shelf, start_server):
    shelf.add(1)
    server = start_server(shelf.folder, *CONTROL)
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(controlled):
    with triton.InferenceServerClient(controlled.url.removeprefix("http://")) as client:
        yield client


def ask(url, texts=("rain",)):
    answer = httpx.post(f"{url}/v1/predict", json={"texts": [*texts], "model": "topics"})
    assert answer.status_code == 200, answer.text
    return answer.json()["version"], answer.json()["predictions"][0]["label"]


def test_a_new_version_is_loaded_and_a_model_unloaded(client, controlled, shelf):
    assert client.get_model_repository_index() == [READY]
    assert client.get_model_config("topics")["version_policy"] == {"latest": {"num_versions": 1}}
    shelf.add(2, policy="version_policy { latest { num_versions: 2 } }")
    client.load_model("topics")
    assert client.get_model_metadata("topics")["versions"] == ["1", "2"]
    assert client.get_model_config("topics")["version_policy"] == {"latest": {"num_versions": 2}}
    assert ask(controlled.url) == ("2", "weather-2")
    client.unload_model("topics")
    assert not client.is_model_ready("topics")
    assert {one["state"] for one in client.get_model_repository_index()} == {"UNAVAILABLE"}
    asked = {"/v2/models/topics/infer": {"inputs": []}, "/v1/predict": {"texts": ["rain"]}}
    for path, body in asked.items():
        assert httpx.post(f"{controlled.url}{path}", json=body).status_code == 404
    assert client.is_server_live()
    assert not client.is_server_ready()  # no model is left
    client.load_model("topics")
    assert client.is_model_ready("topics")
    assert client.is_model_ready("topics", "1")


def test_a_version_that_cannot_be_loaded_is_reported_and_listed(client, controlled, shelf):
    shelf.add(2, wrong=True)
    with pytest.raises(InferenceServerException, match="differ from the checkpoint") as caught:
        client.load_model("topics")
    assert caught.value.status() == "400"
    index = client.get_model_repository_index()
    assert index[0] == READY
    assert index[1]["state"] == "UNAVAILABLE"
    assert "differ from the checkpoint" in index[1]["reason"]
    path = f"{controlled.url}/v2/repository/index"
    assert httpx.post(path, json={"ready": True}).json() == [READY]
    assert ask(controlled.url) == ("1", "weather")
    assert client.is_server_ready()
    for name in ("other", "..", "%2e%2e%2ftopics"):
        with pytest.raises(InferenceServerException) as caught:
            client.load_model(name)
        assert caught.value.status() == "404"


def test_a_request_cannot_send_a_model(client, controlled):
    with pytest.raises(InferenceServerException, match="loaded from the repository only"):
        client.load_model("topics", config="{}")
    code = {"parameters": {"file:1/model.py": "aW1wb3J0IG9z"}}
    answer = httpx.post(f"{controlled.url}/v2/repository/models/topics/load", json=code)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("parameter 'file:1/model.py': models are loaded from")
    for path in ("index", "models/topics/load", "models/topics/unload"):
        for body in (b"{", b"[]", b'{"ready": 1, "parameters": 1}', b"\xff"):
            answer = httpx.post(f"{controlled.url}/v2/repository/{path}", content=body)
            assert answer.status_code == 400
            assert answer.json()["error"].startswith(("body: expected", "ready: ", "parameters: "))
    assert ask(controlled.url) == ("1", "weather")


def test_a_web_page_of_another_site_cannot_control_models(controlled):
    for host, origin, status in (
        ("127.0.0.1:8000", None, 200),
        ("models.example:8000", None, 403),  # a name of none of this server's addresses
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),
        ("LocalHost:8000", "http://localhost:8000", 200),
        ("[::1]:8000", "https://[::1]:8000", 200),
        ("127.0.0.1:8000", "http://other.example", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:8001", 403),
        ("127.0.0.1:8000", "null", 403),
        ("other.example:8000", "http://other.example:8000", 403),  # its name may be of 127.0.0.1
        ("[::1", "http://[::1", 403),
    ):
        headers = {"Host": host, "Content-Type": "text/plain"}
        headers |= {} if origin is None else {"Origin": origin}
        for verb in ("unload", "load"):
            path = f"{controlled.url}/v2/repository/models/topics/{verb}"
            answer = httpx.post(path, headers=headers)
            assert answer.status_code == status, (host, origin)
            found = host.startswith(("models.", "other.", "[::1")) and "Host name of this server"
            assert status == 200 or (found or f"found Origin {origin!r}") in answer.json()["error"]
        assert ask(controlled.url) == ("1", "weather")


def test_a_web_page_with_an_api_key_may_control_models(shelf, start_server):
    shelf.add(1)
    server = start_server(shelf.folder, *CONTROL, PIPEWORK_API_KEYS="first-key")
    path = f"{server.url}/v2/repository/models/topics/load"
    page = {"Origin": "https://console.example"}
    assert httpx.post(path, headers=page).status_code == 401
    assert httpx.post(path, headers={**page, "X-API-Key": "first-key"}).status_code == 200
    assert server.stop() == 0


def test_grpc_controls_the_same_models(controlled, shelf):
    with triton_grpc.InferenceServerClient(controlled.grpc) as client:
        shelf.add(2)
        client.load_model("topics")
        assert ask(controlled.url) == ("2", "weather-2")
        client.unload_model("topics")
        assert not client.is_model_ready("topics")
        (listed,) = client.get_model_repository_index(as_json=True)["models"]
        assert (listed["state"], listed["reason"]) == ("UNAVAILABLE", "unloaded")
        with grpc.insecure_channel(controlled.grpc) as channel:
            ready = proto.RepositoryIndexRequest(ready=True)
            assert not GRPCInferenceServiceStub(channel).RepositoryIndex(ready).models
        shelf.add(3, wrong=True)
        for match, code, name, given in (
            ("differ from the checkpoint", "INVALID_ARGUMENT", "topics", {}),
            ("loaded from the repository only", "INVALID_ARGUMENT", "topics", {"config": "{}"}),
            ("the repository has no model '..'", "NOT_FOUND", "..", {}),
        ):
            with pytest.raises(InferenceServerException, match=match) as caught:
                client.load_model(name, **given)
            assert code in caught.value.status()


def test_polling_loads_versions_and_loses_no_request(shelf, start_server):
    shelf.add(1)
    server = start_server(shelf.folder, "models.poll_s=0.05")
    answers, stop = [], asyncio.Event()

    async def ask(client):
        while not stop.is_set():
            answer = await client.post("/v1/predict", json={"texts": ["goal"]})
            assert answer.status_code == 200, answer.text
            found = answer.json()
            answers.append((found["version"], found["predictions"][0]["label"]))

    async def switch():
        limit_s = time.monotonic() + 30
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            tasks = [asyncio.create_task(ask(client)) for _ in range(16)]
            for version in (1, 2, 3):
                if version > 1:
                    shelf.add(version)
                while not answers or answers[-1][0] != str(version):
                    assert time.monotonic() < limit_s
                    await asyncio.sleep(0.02)
            stop.set()
            await asyncio.gather(*tasks)

    asyncio.run(switch())
    assert {*answers} == {("1", "sport"), ("2", "sport-2"), ("3", "sport-3")}
    index = httpx.post(f"{server.url}/v2/repository/index")
    assert [one["version"] for one in index.json() if one["state"] == "READY"] == ["3"]
    assert server.stop() == 0


def test_clients_cannot_control_models_without_the_setting(server):
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        (listed,) = client.get_model_repository_index()
        assert (listed["name"], listed["state"]) == ("topics", "READY")
        for control in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="--set models") as caught:
                control("topics")
            assert caught.value.status() == "403"
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for control in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="models on request") as caught:
                control("topics")
            assert "PERMISSION_DENIED" in caught.value.status()
