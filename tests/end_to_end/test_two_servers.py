"""NVIDIA's clients get the same results from `pipe serve` and from a real tritonserver."""

import asyncio
import json
import queue
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
from google.protobuf.message import Message
from tritonclient.utils import InferenceServerException

from pipework.client.client import Client
from pipework.data.examples import Example
from pipework.errors import MissingDependencyError
from pipework.export.config import DecisionSettings, ExportSettings, TritonSettings
from pipework.export.inference import predict_run
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import ServerOptions, TritonServer
from tests.commands import served
from tests.serve.protocol_clients import (
    CLIENTS,
    GRPC,
    HTTP,
    ServerAddress,
    as_json,
    call,
    requested_output,
    tensor,
    texts_of,
)

# tritonclient.http.aio does not read responses if it needs only their status.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
PERF_ANALYZER = Path(__file__).parents[3] / "shared" / "tools" / "perf_analyzer.sh"
TEXTS = ["The match went to extra time", "今天下午有雷阵雨", "", "word " * 500, "票房 of the film"]
ERROR_STATUSES = {  # statuses over HTTP and gRPC
    "unknown model": ("404", "NOT_FOUND"),
    "unknown version": ("404", "NOT_FOUND"),
    "unknown input": ("400", "INVALID_ARGUMENT"),
    "unknown output": ("400", "INVALID_ARGUMENT"),
    "wrong type": ("400", "INVALID_ARGUMENT"),
    "wrong shape": ("400", "INVALID_ARGUMENT"),
    "missing text": ("400", "INVALID_ARGUMENT"),
}


@pytest.fixture(scope="module")
def abstaining_run(exported_run, tmp_path_factory):
    """A run that gives no label to some of the texts."""
    run = tmp_path_factory.mktemp("abstaining") / "run"
    shutil.copytree(exported_run, run)
    answers = predict_run(run, [Example(text=text) for text in TEXTS])
    limit = float(np.median([prediction.score for _, prediction in answers]))
    decision = DecisionSettings(min_score=limit)
    export(run, NullProgress(), settings=ExportSettings(speed_s=0, decision=decision))
    return run


def test_our_api_marks_texts_without_a_label(repository, predicted):
    with contextmanager(pipework_server)(repository) as server:
        body = httpx.post(f"http://{server.http}/v1/predict", json={"texts": TEXTS}).json()
        metrics = httpx.get(f"http://{server.http}/metrics").text
        with Client(f"grpc://{server.grpc}") as client:
            over_grpc = client.predict(TEXTS)
    labels = [label or None for label in predicted[0]]
    assert [one["label"] for one in body["predictions"]] == labels
    assert [one.get("abstained", False) for one in body["predictions"]] == [
        label is None for label in labels
    ]
    assert all(len(one["scores"]) == predicted[1].shape[1] for one in body["predictions"])
    assert [one.label for one in over_grpc] == labels
    (counted,) = re.findall(r"^pipework_abstained_texts_total{.*} (.*)$", metrics, re.MULTILINE)
    assert float(counted) == labels.count(None)


@pytest.fixture(scope="module")
def repository(abstaining_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "repository"
    name = read_manifest(abstaining_run).identity.name
    add_version(abstaining_run, folder, TritonSettings(name=name), EngineChoice(), NullProgress())
    return folder


@pytest.fixture(scope="module")
def model(abstaining_run):
    return read_manifest(abstaining_run).identity.name


def pipework_server(repository):
    with served(repository, "--set", "models.control=true") as (url, grpc):
        yield ServerAddress(http=url.removeprefix("http://"), grpc=grpc)


def triton_server(repository):
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    # The options of `pipe serve --backend triton --set models.control=true`.
    rules = ServerOptions(control=True, strict=False)
    with TritonServer(repository, options=rules, installation=installation) as running:
        yield ServerAddress(http=running.url.removeprefix("http://"), grpc=running.grpc)


@pytest.fixture(scope="module", params=["pipework", "triton"])
def server(request, repository):
    yield from (
        triton_server(repository) if request.param == "triton" else pipework_server(repository)
    )


@pytest.fixture(params=CLIENTS)
def protocol(request):
    return request.param


@pytest.fixture(scope="module")
def predicted(abstaining_run):
    """Labels, and probabilities in the order of the logits, as returned by `pipe predict`."""
    labels = read_manifest(abstaining_run).task.labels
    examples = [Example(text=text) for text in TEXTS]
    answers = [prediction for _, prediction in predict_run(abstaining_run, examples)]
    scores = [[prediction.scores[label] for label in labels] for prediction in answers]
    predicted = [prediction.label or "" for prediction in answers]
    assert 0 < predicted.count("") < len(TEXTS)
    return predicted, np.array(scores)


def test_the_server_and_its_model_are_ready(server, protocol, model):
    assert call(server, protocol, "is_server_live")
    assert call(server, protocol, "is_server_ready")
    assert call(server, protocol, "is_model_ready", model)
    assert call(server, protocol, "is_model_ready", "other") is False
    extensions = call(server, protocol, "get_server_metadata")["extensions"]
    assert {
        *("binary_tensor_data", "classification", "model_configuration", "model_repository"),
        *("schedule_policy", "statistics"),
    } <= {*extensions}


def test_metadata_and_config_describe_the_tensors(server, protocol, model, abstaining_run):
    classes = len(read_manifest(abstaining_run).task.labels)
    metadata = call(server, protocol, "get_model_metadata", model)
    assert metadata["name"] == model
    assert len(metadata["versions"]) == 1

    def described(tensor_):
        return tensor_["name"], tensor_["datatype"], [int(width) for width in tensor_["shape"]]

    def configured(tensor_):
        return tensor_["name"], tensor_["data_type"], [int(width) for width in tensor_["dims"]]

    assert [*map(described, metadata["inputs"])] == [("text", "BYTES", [-1, 1])]
    assert [*map(described, metadata["outputs"])] == [
        ("label", "BYTES", [-1, 1]),
        ("score", "FP32", [-1, 1]),
        ("probabilities", "FP32", [-1, classes]),
        ("logits", "FP32", [-1, classes]),
    ]
    response = call(server, protocol, "get_model_config", model)
    config = response.get("config", response)
    assert config["max_batch_size"] >= 64
    assert [*map(configured, config["input"])] == [("text", "TYPE_STRING", [1])]
    assert [*map(configured, config["output"])] == [
        ("label", "TYPE_STRING", [1]),
        ("score", "TYPE_FP32", [1]),
        ("probabilities", "TYPE_FP32", [classes]),
        ("logits", "TYPE_FP32", [classes]),
    ]


def test_the_index_lists_the_model(server, protocol, model):
    response = call(server, protocol, "get_model_repository_index")
    (entry,) = response["models"] if isinstance(response, dict) else response
    assert (entry["name"], entry["state"]) == (model, "READY")


@pytest.mark.parametrize(
    ("protocol", "binary_in", "binary_out"),
    [
        *((protocol, *binary) for protocol in HTTP for binary in product((True, False), repeat=2)),
        *((protocol, True, True) for protocol in GRPC),
    ],
)
def test_results_are_those_of_pipe_predict(
    server, protocol, model, predicted, binary_in, binary_out
):
    labels, probabilities = predicted
    names = ("probabilities", "label")
    outputs = [requested_output(protocol, name, binary=binary_out) for name in names]
    inputs = [tensor(protocol, TEXTS, binary=binary_in)]
    result = call(server, protocol, "infer", model, inputs, outputs=outputs, request_id="seven")
    head = result.get_response()
    head = as_json(head) if isinstance(head, Message) else head
    assert (head["id"], head["model_name"]) == ("seven", model)
    assert {output["name"] for output in head["outputs"]} == {*names}
    assert texts_of(result, "label") == labels
    assert result.as_numpy("probabilities") == pytest.approx(probabilities, abs=1e-6)


def test_all_outputs_are_returned_if_none_is_requested(server, protocol, model, predicted):
    labels, probabilities = predicted
    result = call(server, protocol, "infer", model, [tensor(protocol, TEXTS)], priority=1)
    assert texts_of(result, "label") == labels
    assert result.as_numpy("score")[:, 0] == pytest.approx(probabilities.max(1), abs=1e-6)
    logits = result.as_numpy("logits")
    spread = np.exp(logits - logits.max(1, keepdims=True))
    assert spread / spread.sum(1, keepdims=True) == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_class_counts_return_ranked_labels(
    server, protocol, model, predicted, abstaining_run, binary
):
    names = read_manifest(abstaining_run).task.labels
    outputs = [requested_output(protocol, "probabilities", binary=binary, best=2)]
    result = call(server, protocol, "infer", model, [tensor(protocol, TEXTS)], outputs=outputs)
    assert result.as_numpy("probabilities").shape == (len(TEXTS), 2)
    ranked = iter(texts_of(result, "probabilities"))
    for row in predicted[1]:
        for index in np.argsort(-row)[:2]:
            value, place, *label = next(ranked).split(":")
            assert (float(value), int(place)) == (pytest.approx(row[index], abs=2e-6), index)
            assert label == [names[index]]


@pytest.mark.parametrize("index", range(len(TEXTS)))
@pytest.mark.parametrize("chunked", [False, True])
def test_a_raw_binary_request_is_one_text(server, model, predicted, index, chunked):
    content = TEXTS[index].encode()
    answer = httpx.post(
        f"http://{server.http}/v2/models/{model}/infer",
        content=iter([content]) if chunked else content,
        headers={"Inference-Header-Content-Length": "0"},
    )
    assert answer.status_code == 200, answer.text
    size = int(answer.headers["Inference-Header-Content-Length"])
    result = http_client.InferResult.from_response_body(answer.content, header_length=size)
    assert texts_of(result, "label") == predicted[0][index : index + 1]
    assert result.as_numpy("probabilities") == pytest.approx(predicted[1][[index]], abs=1e-6)


@pytest.mark.parametrize("length", ["-1", "1000000"])
def test_a_wrong_length_of_the_json_is_refused(server, model, length):
    answer = httpx.post(
        f"http://{server.http}/v2/models/{model}/infer",
        content=b'{"inputs": []}',
        headers={"Inference-Header-Content-Length": length},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize("change", [-1, 1])
def test_binary_data_of_another_size_are_refused(server, model, change):
    data = b"\x04\x00\x00\x00rain"
    parameters = {"binary_data_size": len(data)}
    text = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "parameters": parameters}
    head = json.dumps({"inputs": [text]}).encode()
    answer = httpx.post(
        f"http://{server.http}/v2/models/{model}/infer",
        content=head + (data + b"!" if change > 0 else data[:change]),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_model_is_unloaded_and_loaded(server, protocol, model, predicted):
    call(server, protocol, "unload_model", model)
    deadline_s = time.monotonic() + 30
    while call(server, protocol, "is_model_ready", model):  # Triton unloads in the background
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pytest.raises(InferenceServerException):
        call(server, protocol, "infer", model, [tensor(protocol, TEXTS)])
    response = call(server, protocol, "get_model_repository_index")
    (entry,) = response["models"] if isinstance(response, dict) else response
    assert entry["name"] == model
    assert entry["state"] in {"UNLOADING", "UNAVAILABLE"}
    call(server, protocol, "load_model", model)
    assert call(server, protocol, "is_model_ready", model)
    result = call(server, protocol, "infer", model, [tensor(protocol, TEXTS)])
    assert texts_of(result, "label") == predicted[0]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
@pytest.mark.parametrize("protocol", GRPC)
def test_grpc_may_be_compressed(server, protocol, model, predicted, compression):
    options = {"compression_algorithm": compression}
    result = call(server, protocol, "infer", model, [tensor(protocol, TEXTS)], **options)
    assert texts_of(result, "label") == predicted[0]


@pytest.mark.parametrize("error_case", ERROR_STATUSES)
def test_errors_have_the_same_status(server, protocol, model, error_case):
    options, tensor_options, name = {}, {}, model
    match error_case:
        case "unknown model":
            name = "other"
        case "unknown version":
            options["model_version"] = "9"
        case "unknown input":
            tensor_options["name"] = "words"
        case "unknown output":
            options["outputs"] = [requested_output(protocol, "length")]
        case "wrong type":
            tensor_options["datatype"] = "INT32"
        case "wrong shape":
            tensor_options["shape"] = [1, 1, 1]
    if error_case == "missing text":
        kind = CLIENTS[protocol]
        inputs = [kind.InferInput("text", [2, 1], "BYTES")]
        inputs[0].set_data_from_numpy(np.array([[b"one"], [b"two"]], np.object_))
        inputs[0].set_shape([3, 1])
    else:
        inputs = [tensor(protocol, ["text"], **tensor_options)]
    with pytest.raises(InferenceServerException) as caught:
        call(server, protocol, "infer", name, inputs, **options)
    assert caught.value.status().removeprefix("StatusCode.") in ERROR_STATUSES[error_case]
    assert caught.value.message()


def test_statistics_count_texts_and_requests(server, protocol, model):
    def counted():
        (statistics,) = call(server, protocol, "get_inference_statistics", model)["model_stats"]
        success = statistics["inference_stats"]["success"]
        return [int(n) for n in (statistics["inference_count"], success["count"], success["ns"])]

    before = counted()
    call(server, protocol, "infer", model, [tensor(protocol, TEXTS)])
    # Triton counts a request after it has sent the response.
    deadline_s = time.monotonic() + 30
    while (after := counted()) == before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    texts, requests, nanoseconds = np.subtract(after, before)
    assert (texts, requests) == (len(TEXTS), 1)
    assert nanoseconds > 0


def test_requests_of_the_http_client_may_be_asynchronous(server, model, predicted):
    with http_client.InferenceServerClient(server.http, concurrency=4) as client:
        requests = [client.async_infer(model, [tensor("http", [text])]) for text in TEXTS * 4]
        labels = [texts_of(pending.get_result(), "label")[0] for pending in requests]
    assert labels == predicted[0] * 4


def test_requests_of_the_grpc_client_may_be_asynchronous(server, model, predicted):
    results: queue.Queue[object] = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        for number, text in enumerate(TEXTS * 4):
            inputs = [tensor("grpc", [text])]
            put = lambda result, error: results.put(error or result)  # noqa: E731
            client.async_infer(model, inputs, put, request_id=str(number))
        answers = [results.get(timeout=60) for _ in TEXTS * 4]
    in_order = sorted(answers, key=lambda result: int(result.get_response().id))
    assert [texts_of(result, "label")[0] for result in in_order] == predicted[0] * 4


def test_a_stream_is_answered_in_order(server, model, predicted):
    results: queue.Queue[object] = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: results.put(error or result))
        for number, text in enumerate(TEXTS * 4):
            inputs = [tensor("grpc", [text])]
            name = "other" if number == 2 else model
            client.async_stream_infer(name, inputs, request_id=str(number))
        answers = [results.get(timeout=60) for _ in TEXTS * 4]
        client.stop_stream()
    (error,) = [response for response in answers if isinstance(response, InferenceServerException)]
    assert "other" in error.message()
    answers.remove(error)
    numbers = [number for number in range(20) if number != 2]
    assert [int(response.get_response().id) for response in answers] == numbers
    assert [texts_of(response, "label")[0] for response in answers] == [
        (predicted[0] * 4)[number] for number in numbers
    ]


def test_the_asynchronous_client_can_stream(server, model, predicted):
    async def requests():
        for number, text in enumerate(TEXTS):
            inputs = [tensor("grpc.aio", [text])]
            yield {"model_name": model, "inputs": inputs, "request_id": str(number)}

    async def ask():
        async with grpc_aio.InferenceServerClient(server.grpc) as client:
            return [result async for result in client.stream_infer(requests())]

    answers = asyncio.run(ask())
    assert [error for _, error in answers] == [None] * len(TEXTS)
    assert [texts_of(result, "label")[0] for result, _ in answers] == predicted[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("http", []),
        pytest.param("grpc", [], marks=pytest.mark.slow),
        pytest.param("grpc", ["--streaming"], marks=pytest.mark.slow),
    ],
)
def test_perf_analyzer_can_measure_the_server(server, model, tmp_path, protocol, options):
    if not PERF_ANALYZER.is_file():
        pytest.skip("perf_analyzer is missing: expected ../shared/tools/perf_analyzer.sh")
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"text": [text]} for text in TEXTS]}))
    command = [PERF_ANALYZER, "-m", model, "-u", server.url(protocol), "-i", protocol]
    command += [
        "--input-data",
        data,
        "--concurrency-range",
        "4",
        "--measurement-mode",
        "count_windows",
    ]
    command += ["--measurement-request-count", "50"]
    command += ["--max-trials", "9", "--stability-percentage", "999"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (throughput,) = re.findall(
        r"^Concurrency: 4, throughput: ([\d.]+) infer/sec", done.stdout, re.MULTILINE
    )
    assert float(throughput) > 0
