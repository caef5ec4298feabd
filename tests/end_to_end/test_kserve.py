"""The clients of the KServe SDK, which is heavy and therefore has an environment of its own.

    python -m venv DIR && DIR/bin/pip install kserve
    KSERVE_PYTHON=DIR/bin/python pytest tests/end_to_end/test_kserve.py

Without it, the requests that the SDK sends (0.21) are sent by other clients.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import httpx
import pytest

from pipework.run_folder.manifest import read_manifest
from tests.commands import served

LONG = "word " * 500
SDK = """
import asyncio
import json
import logging
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

url, grpc, model, *texts = sys.argv[1:]
logging.disable()


def request(binary, name=model, outputs=None, **parameters):
    array = np.array([text.encode() for text in texts], np.object_)[:, None]
    text = InferInput("text", list(array.shape), "BYTES")
    text.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(
        name, [text], request_id="7", parameters=parameters or None, request_outputs=outputs
    )


def found(response):
    (label,) = [output for output in response.outputs if output.name == "label"]
    texts = label.as_numpy().ravel()
    labels = [str(text.decode() if isinstance(text, bytes) else text) for text in texts]
    parameters = response.parameters or {}
    truncated = parameters.get("truncated", "")
    return [response.id, labels, getattr(truncated, "string_param", truncated)]


async def status(call):
    try:
        await call
    except Exception as error:
        return str(getattr(error, "response", error.__class__.__name__)) + " " + str(error)[:200]
    return "no error"


async def main():
    rest, results = InferenceRESTClient(RESTConfig(protocol="v2")), {}
    results["rest health"] = [
        await rest.is_server_live(url),
        await rest.is_server_ready(url),
        await rest.is_model_ready(url, model),
        await rest.is_model_ready(url, "other"),
    ]
    some = [RequestedOutput("label", {"binary_data": True}), RequestedOutput("score")]
    results["rest infer"] = [
        found(await rest.infer(url, request(binary, **options), model_name=model))
        for binary in (True, False)
        for options in ({}, {"binary_data_output": True}, {"outputs": some})
    ]
    results["rest error"] = await status(rest.infer(url, request(True), model_name="other"))
    async with InferenceGRPCClient(grpc) as client:
        results["grpc health"] = [
            await client.is_server_live(),
            await client.is_server_ready(),
            await client.is_model_ready(model),
            await client.is_model_ready("other"),
        ]
        results["grpc infer"] = [
            found(await client.infer(request(binary, outputs=outputs)))
            for binary in (True, False)
            for outputs in (None, [RequestedOutput("label")])
        ]
        results["grpc error"] = await status(client.infer(request(True, "other")))
    print(json.dumps(results))


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(exported_run):
    """The addresses of a server, HTTP and gRPC."""
    with served(exported_run) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def model(exported_run):
    return read_manifest(exported_run).identity.name


@pytest.fixture(scope="module")
def results(server, model):
    """The results of all calls of the SDK."""
    python = os.environ.get("KSERVE_PYTHON") or (sys.executable if find_spec("kserve") else None)
    if python is None:
        pytest.skip("the KServe SDK is absent: set KSERVE_PYTHON to a Python that has it")
    done = subprocess.run(
        [python, "-c", SDK, *server, model, "rain all week", LONG, ""],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def labels(server):
    answer = httpx.post(f"{server[0]}/v1/predict", json={"texts": ["rain all week", LONG, ""]})
    return [prediction["label"] for prediction in answer.json()["predictions"]]


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_the_sdk_reads_the_health_of_server_and_models(results, protocol):
    assert results[f"{protocol} health"] == [True, True, True, False]


@pytest.mark.parametrize(("protocol", "requests"), [("rest", 6), ("grpc", 4)])
def test_the_sdk_reads_outputs_and_truncated_texts(results, labels, protocol, requests):
    assert results[f"{protocol} infer"] == [["7", labels, "1"]] * requests


def test_the_sdk_reads_errors(results):
    assert "404" in results["rest error"]
    assert "unknown model 'other'" in results["rest error"]
    assert "NOT_FOUND" in results["grpc error"]


def test_the_requests_of_the_sdk_are_answered(server, model, labels):
    url = f"{server[0]}/v2"
    assert httpx.get(f"{url}/health/live").json()["live"] is True
    assert httpx.get(f"{url}/health/ready").json()["ready"] is True
    assert httpx.get(f"{url}/models/{model}/ready").status_code == 200
    texts = ["rain all week", LONG, ""]
    text = {"name": "text", "shape": [3, 1], "datatype": "BYTES", "data": texts}
    body = {"id": "7", "model_name": model, "inputs": [text]}
    answer = httpx.post(f"{url}/models/{model}/infer", json=body).json()
    assert (answer["id"], answer["model_name"]) == ("7", model)
    assert answer["outputs"][0]["data"] == labels
    assert answer["parameters"] == {"truncated": "1"}
    packed = b"".join(len(one.encode()).to_bytes(4, "little") + one.encode() for one in texts)
    text = {**text, "parameters": {"binary_data_size": len(packed)}}
    del text["data"]
    outputs = [{"name": "label", "parameters": {"binary_data": False}}]
    head = json.dumps({**body, "inputs": [text], "outputs": outputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    headers["content-type"] = "application/octet-stream"
    answer = httpx.post(f"{url}/models/{model}/infer", content=head + packed, headers=headers)
    assert answer.json()["outputs"][0]["data"] == labels
