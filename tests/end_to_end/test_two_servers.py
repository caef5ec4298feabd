"""The same clients, unchanged, against our server and against the real tritonserver."""

import asyncio
import json
import queue
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tritonclient.utils import InferenceServerException

from pipework.data.examples import Example
from pipework.errors import MissingDependencyError
from pipework.export.config import TritonSettings
from pipework.export.inference import predict_run
from pipework.export.triton.model_repository import Wanted, add_version
from pipework.progress import Silent
from pipework.run_folder.manifest import read_manifest
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.ports import Rules
from pipework.serve.triton.server import TritonServer

# tritonclient.http.aio leaves answers unread where only their status counts.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
PIPE = Path(sys.executable).with_name("pipe")
PERF_ANALYZER = Path(__file__).parents[3] / "shared" / "tools" / "perf_analyzer.sh"
CLIENTS = {
    "http": http_client,
    "http.aio": http_aio,
    "grpc": grpc_client,
    "grpc.aio": grpc_aio,
}
HTTP, GRPC = ("http", "http.aio"), ("grpc", "grpc.aio")
TEXTS = ["The match went to extra time", "今天下午有雷阵雨", "", "word " * 500, "票房 of the film"]
SAID_WRONG = {  # what goes wrong, and the status of each protocol
    "a model that there is not": ("404", "NOT_FOUND"),
    "a version that there is not": ("404", "NOT_FOUND"),
    "an input that there is not": ("400", "INVALID_ARGUMENT"),
    "an output that there is not": ("400", "INVALID_ARGUMENT"),
    "another type": ("400", "INVALID_ARGUMENT"),
    "another shape": ("400", "INVALID_ARGUMENT"),
    "no text": ("400", "INVALID_ARGUMENT"),
}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server of the exported run: host:port of its doors."""

    http: str
    grpc: str

    def url(self, door: str) -> str:
        return self.http if door.startswith("http") else self.grpc


@pytest.fixture(scope="module")
def repository(exported_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "repository"
    name = read_manifest(exported_run).identity.name
    add_version(exported_run, folder, TritonSettings(name=name), Wanted(), Silent())
    return folder


@pytest.fixture(scope="module")
def model(exported_run):
    return read_manifest(exported_run).identity.name


def ours(repository):
    command = [PIPE, "serve", repository, "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            http, grpc = re.fullmatch(r"serving on http://(\S+) and gRPC on (\S+)\n", line).groups()
            yield Server(http=http, grpc=grpc)
        finally:
            process.terminate()
            assert process.wait(60) == 0


def theirs(repository):
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    # As `pipe serve --backend triton --set models.control=true` starts it.
    rules = Rules(control=True, strict=False)
    with TritonServer(repository, rules=rules, installation=installation) as running:
        yield Server(http=running.url.removeprefix("http://"), grpc=running.grpc)


@pytest.fixture(scope="module", params=["pipework", "triton"])
def server(request, repository):
    yield from theirs(repository) if request.param == "triton" else ours(repository)


@pytest.fixture(params=CLIENTS)
def door(request):
    return request.param


def call(server, door, method, *given, **options):
    """Call a method of a client of its own; gRPC's messages become what HTTP's JSON is."""
    found = asyncio.run(call_aio(server, door, method, given, options))
    return as_json(found) if isinstance(found, Message) else found


def as_json(message):
    options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    return MessageToDict(message, **options)


async def call_aio(server, door, method, given, options):
    kind = CLIENTS[door].InferenceServerClient
    if door.endswith("aio"):
        async with kind(server.url(door)) as client:
            return await getattr(client, method)(*given, **options)
    with kind(server.url(door)) as client:
        return getattr(client, method)(*given, **options)


def tensor(door, texts, *, binary=True, name="text", datatype="BYTES", shape=None):
    kind = CLIENTS[door]
    array = np.array([text.encode() for text in texts], np.object_)[:, None]
    if datatype != "BYTES":
        array = np.arange(len(texts), dtype=np.int32)[:, None]
    array = array.reshape(shape or array.shape)
    found = kind.InferInput(name, list(array.shape), datatype)
    if door.startswith("http"):
        found.set_data_from_numpy(array, binary_data=binary)
    else:
        found.set_data_from_numpy(array)
    return found


def wanted(door, name, *, binary=True, best=0):
    if door.startswith("http"):
        return CLIENTS[door].InferRequestedOutput(name, binary_data=binary, class_count=best)
    return CLIENTS[door].InferRequestedOutput(name, class_count=best)


def words(found, name):
    """The elements of a tensor of texts, in a list; JSON gives strings for bytes."""
    flat = found.as_numpy(name).ravel().tolist()
    return [one.decode() if isinstance(one, bytes) else one for one in flat]


@pytest.fixture(scope="module")
def predicted(exported_run):
    """Labels, and probabilities in the order of the logits, as `pipe predict` has them."""
    labels = read_manifest(exported_run).task.labels
    examples = [Example(text=text) for text in TEXTS]
    answers = [one for _, one in predict_run(exported_run, examples)]
    scores = [[one.scores[label] for label in labels] for one in answers]
    return [one.label for one in answers], np.array(scores)


def test_the_server_and_its_model_are_ready(server, door, model):
    assert call(server, door, "is_server_live")
    assert call(server, door, "is_server_ready")
    assert call(server, door, "is_model_ready", model)
    assert call(server, door, "is_model_ready", "other") is False
    extensions = call(server, door, "get_server_metadata")["extensions"]
    assert {
        *("binary_tensor_data", "classification", "model_configuration", "model_repository"),
        *("schedule_policy", "statistics"),
    } <= {*extensions}


def test_the_model_says_the_same_of_its_tensors(server, door, model, exported_run):
    classes = len(read_manifest(exported_run).task.labels)
    metadata = call(server, door, "get_model_metadata", model)
    assert metadata["name"] == model
    assert len(metadata["versions"]) == 1

    def described(one):
        return one["name"], one["datatype"], [int(width) for width in one["shape"]]

    def configured(one):
        return one["name"], one["data_type"], [int(width) for width in one["dims"]]

    assert [*map(described, metadata["inputs"])] == [("text", "BYTES", [-1, 1])]
    assert [*map(described, metadata["outputs"])] == [
        ("label", "BYTES", [-1, 1]),
        ("score", "FP32", [-1, 1]),
        ("probabilities", "FP32", [-1, classes]),
        ("logits", "FP32", [-1, classes]),
    ]
    found = call(server, door, "get_model_config", model)
    config = found.get("config", found)
    assert config["max_batch_size"] >= 64
    assert [*map(configured, config["input"])] == [("text", "TYPE_STRING", [1])]
    assert [*map(configured, config["output"])] == [
        ("label", "TYPE_STRING", [1]),
        ("score", "TYPE_FP32", [1]),
        ("probabilities", "TYPE_FP32", [classes]),
        ("logits", "TYPE_FP32", [classes]),
    ]


def test_the_index_lists_the_model(server, door, model):
    found = call(server, door, "get_model_repository_index")
    (one,) = found["models"] if isinstance(found, dict) else found
    assert (one["name"], one["state"]) == (model, "READY")


@pytest.mark.parametrize(
    ("door", "binary_in", "binary_out"),
    [
        *((door, *binary) for door in HTTP for binary in product((True, False), repeat=2)),
        *((door, True, True) for door in GRPC),
    ],
)
def test_answers_are_those_of_predict(server, door, model, predicted, binary_in, binary_out):
    labels, probabilities = predicted
    names = ("probabilities", "label")
    outputs = [wanted(door, name, binary=binary_out) for name in names]
    given = [tensor(door, TEXTS, binary=binary_in)]
    found = call(server, door, "infer", model, given, outputs=outputs, request_id="seven")
    head = found.get_response()
    head = as_json(head) if isinstance(head, Message) else head
    assert (head["id"], head["model_name"]) == ("seven", model)
    assert {one["name"] for one in head["outputs"]} == {*names}
    assert words(found, "label") == labels
    assert found.as_numpy("probabilities") == pytest.approx(probabilities, abs=1e-6)


def test_all_outputs_come_where_none_is_named(server, door, model, predicted):
    labels, probabilities = predicted
    found = call(server, door, "infer", model, [tensor(door, TEXTS)], priority=1)
    assert words(found, "label") == labels
    assert found.as_numpy("score")[:, 0] == pytest.approx(probabilities.max(1), abs=1e-6)
    logits = found.as_numpy("logits")
    spread = np.exp(logits - logits.max(1, keepdims=True))
    assert spread / spread.sum(1, keepdims=True) == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_classes_in_words(server, door, model, predicted, exported_run, binary):
    names = read_manifest(exported_run).task.labels
    outputs = [wanted(door, "probabilities", binary=binary, best=2)]
    found = call(server, door, "infer", model, [tensor(door, TEXTS)], outputs=outputs)
    assert found.as_numpy("probabilities").shape == (len(TEXTS), 2)
    ranked = iter(words(found, "probabilities"))
    for row in predicted[1]:
        for index in np.argsort(-row)[:2]:
            value, place, *label = next(ranked).split(":")
            assert (float(value), int(place)) == (pytest.approx(row[index], abs=2e-6), index)
            assert label == [names[index]]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
@pytest.mark.parametrize("door", GRPC)
def test_grpc_may_be_compressed(server, door, model, predicted, compression):
    options = {"compression_algorithm": compression}
    found = call(server, door, "infer", model, [tensor(door, TEXTS)], **options)
    assert words(found, "label") == predicted[0]


@pytest.mark.parametrize("wrong", SAID_WRONG)
def test_errors_have_the_same_status(server, door, model, wrong):
    options, given, name = {}, {}, model
    match wrong:
        case "a model that there is not":
            name = "other"
        case "a version that there is not":
            options["model_version"] = "9"
        case "an input that there is not":
            given["name"] = "words"
        case "an output that there is not":
            options["outputs"] = [wanted(door, "length")]
        case "another type":
            given["datatype"] = "INT32"
        case "another shape":
            given["shape"] = [1, 1, 1]
    if wrong == "no text":
        kind = CLIENTS[door]
        inputs = [kind.InferInput("text", [2, 1], "BYTES")]
        inputs[0].set_data_from_numpy(np.array([[b"one"], [b"two"]], np.object_))
        inputs[0].set_shape([3, 1])
    else:
        inputs = [tensor(door, ["text"], **given)]
    with pytest.raises(InferenceServerException) as caught:
        call(server, door, "infer", name, inputs, **options)
    assert caught.value.status().removeprefix("StatusCode.") in SAID_WRONG[wrong]
    assert caught.value.message()


def test_statistics_count_what_was_asked(server, door, model):
    def counted():
        (one,) = call(server, door, "get_inference_statistics", model)["model_stats"]
        success = one["inference_stats"]["success"]
        return [int(n) for n in (one["inference_count"], success["count"], success["ns"])]

    before = counted()
    call(server, door, "infer", model, [tensor(door, TEXTS)])
    # Triton counts a request after it has answered it.
    until = time.monotonic() + 30
    while (after := counted()) == before and time.monotonic() < until:
        time.sleep(0.01)
    texts, requests, nanoseconds = np.subtract(after, before)
    assert (texts, requests) == (len(TEXTS), 1)
    assert nanoseconds > 0


def test_requests_of_the_http_client_may_be_asynchronous(server, model, predicted):
    with http_client.InferenceServerClient(server.http, concurrency=4) as client:
        asked = [client.async_infer(model, [tensor("http", [text])]) for text in TEXTS * 4]
        found = [words(one.get_result(), "label")[0] for one in asked]
    assert found == predicted[0] * 4


def test_requests_of_the_grpc_client_may_be_asynchronous(server, model, predicted):
    found: queue.Queue[object] = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        for number, text in enumerate(TEXTS * 4):
            given = [tensor("grpc", [text])]
            put = lambda result, error: found.put(error or result)  # noqa: E731
            client.async_infer(model, given, put, request_id=str(number))
        answers = [found.get(timeout=60) for _ in TEXTS * 4]
    in_order = sorted(answers, key=lambda one: int(one.get_response().id))
    assert [words(one, "label")[0] for one in in_order] == predicted[0] * 4


def test_a_stream_is_answered_in_order(server, model, predicted):
    found: queue.Queue[object] = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: found.put(error or result))
        for number, text in enumerate(TEXTS * 4):
            given = [tensor("grpc", [text])]
            name = "other" if number == 2 else model
            client.async_stream_infer(name, given, request_id=str(number))
        answers = [found.get(timeout=60) for _ in TEXTS * 4]
        client.stop_stream()
    (wrong,) = [one for one in answers if isinstance(one, InferenceServerException)]
    assert "other" in wrong.message()
    answers.remove(wrong)
    numbers = [number for number in range(20) if number != 2]
    assert [int(one.get_response().id) for one in answers] == numbers
    assert [words(one, "label")[0] for one in answers] == [
        (predicted[0] * 4)[number] for number in numbers
    ]


def test_a_stream_of_the_asynchronous_client(server, model, predicted):
    async def requests():
        for number, text in enumerate(TEXTS):
            given = [tensor("grpc.aio", [text])]
            yield {"model_name": model, "inputs": given, "request_id": str(number)}

    async def ask():
        async with grpc_aio.InferenceServerClient(server.grpc) as client:
            return [one async for one in client.stream_infer(requests())]

    answers = asyncio.run(ask())
    assert [error for _, error in answers] == [None] * len(TEXTS)
    assert [words(result, "label")[0] for result, _ in answers] == predicted[0]


@pytest.mark.parametrize(
    ("protocol", "more"), [("http", []), ("grpc", []), ("grpc", ["--streaming"])]
)
def test_perf_analyzer_measures_it(server, model, tmp_path, protocol, more):
    if not PERF_ANALYZER.is_file():
        pytest.skip("perf_analyzer is absent: put a folder shared/tools beside the checkout")
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
        [*command, *more], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (throughput,) = re.findall(
        r"^Concurrency: 4, throughput: ([\d.]+) infer/sec", done.stdout, re.MULTILINE
    )
    assert float(throughput) > 0
