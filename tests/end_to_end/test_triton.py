"""An exported model repository on a real tritonserver, called by NVIDIA's client."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from pipework.data.examples import Example
from pipework.errors import MissingDependencyError
from pipework.export.config import (
    ExportSettings,
    RoundedToleranceSettings,
    TolerancesSettings,
    TritonBackend,
    TritonSettings,
)
from pipework.export.inference import predict_run
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.export.triton.triton_config import FILE_NAME, from_text, to_text
from pipework.machine import computes_bf16
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines import open_proven
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer
from pipework.text.encoding import open_encoder

LOWEST = Precision.BF16 if computes_bf16() else Precision.FP32
PACKED = Variant(format="openvino", precision=LOWEST, layout=Layout.PACKED)
TEXTS = ["The match went to extra time", "今天下午有雷阵雨", "", "word " * 500, "票房 of the film"]
CLIENTS, REQUESTS = 32, 4
LONG = ["word " * 500] * 32
# Replaces the onnxruntime backend of Triton, which is not on PyPI; it has the same tensors.
FAKE_BACKEND = """
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        path = f"{args['model_repository']}/{args['model_version']}/model.onnx"
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        return [self.infer(request) for request in requests]

    def infer(self, request):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        (logits,) = self.session.run(["logits"], arrays)
        return triton.InferenceResponse([triton.Tensor("logits", logits)])
"""


@pytest.fixture(scope="module")
def packed_run(exported_run, tmp_path_factory):
    """The exported run with an additional packed OpenVINO engine."""
    run = tmp_path_factory.mktemp("runs") / "both"
    shutil.copytree(exported_run, run)
    # The run has learned little: bf16 changes 1 % of its labels, of which some were right.
    limits = TolerancesSettings(bf16=RoundedToleranceSettings(flips=0.03, score_drop=0.02))
    export(run, NullProgress(), [PACKED], settings=ExportSettings(speed_s=0.2, tolerances=limits))
    return run


@pytest.fixture(scope="module")
def repository(exported_run, packed_run, tmp_path_factory):
    """Version 1 with the ONNX engine, version 2 with the packed engine, and a two-model setup."""
    folder = tmp_path_factory.mktemp("triton") / "repository"
    text = TritonSettings(name="text")
    add_version(exported_run, folder, text, EngineChoice(), NullProgress())
    add_version(packed_run, folder, text, EngineChoice(layout=Layout.PACKED), NullProgress())
    front = TritonSettings(name="front", backend=TritonBackend.ONNXRUNTIME)
    add_version(exported_run, folder, front, EngineChoice(), NullProgress())
    stand_in = folder / "front-engine"
    config = from_text((stand_in / FILE_NAME).read_text())
    config.platform, config.backend, config.default_model_filename = "", "python", "model.py"
    (stand_in / FILE_NAME).write_text(to_text(config))
    (stand_in / "1" / "model.py").write_text(FAKE_BACKEND)
    return folder


@pytest.fixture(scope="module")
def server(repository):
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    with TritonServer(repository, installation=installation) as running:
        yield running


@pytest.fixture
def http(server):
    with http_client.InferenceServerClient(server.url.removeprefix("http://")) as client:
        yield client


@pytest.fixture
def grpc(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        yield client


def infer(client, texts, model="text", version="", names=("label", "probabilities", "logits")):
    kind = grpc_client if isinstance(client, grpc_client.InferenceServerClient) else http_client
    infer_input = kind.InferInput("text", [len(texts), 1], "BYTES")
    encoded = [text if isinstance(text, bytes) else text.encode() for text in texts]
    infer_input.set_data_from_numpy(np.array(encoded, np.object_)[:, None])
    outputs = [kind.InferRequestedOutput(name) for name in names]
    result = client.infer(model, [infer_input], model_version=version, outputs=outputs)
    return {name: result.as_numpy(name) for name in names}


def predicted(run, texts):
    """Return labels, and probabilities in the order of the logits, as `pipe predict` does."""
    labels = read_manifest(run).task.labels
    predictions = [
        prediction for _, prediction in predict_run(run, [Example(text=text) for text in texts])
    ]
    scores = [[prediction.scores[label] for label in labels] for prediction in predictions]
    return [prediction.label for prediction in predictions], np.array(scores)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("model", "version"), [("text", "1"), ("front", "")])
def test_triton_returns_the_predictions_of_pipe_predict(
    request, exported_run, protocol, model, version
):
    client = request.getfixturevalue(protocol)
    labels, probabilities = predicted(exported_run, TEXTS)
    for texts in (TEXTS, TEXTS[:1]):
        result = infer(client, texts, model, version)
        assert [label.decode() for label in result["label"][:, 0]] == labels[: len(texts)]
        assert result["probabilities"] == pytest.approx(probabilities[: len(texts)], abs=1e-6)


def test_the_latest_version_is_the_default_and_older_versions_can_be_requested(grpc):
    newest = infer(grpc, TEXTS)["logits"]
    assert np.array_equal(newest, infer(grpc, TEXTS, version="2")["logits"])
    before = infer(grpc, TEXTS, version="1")["logits"]
    assert 0 < np.abs(newest - before).max() < 0.1


def test_a_packed_engine_has_the_same_logits_in_triton(grpc, packed_run):
    manifest = read_manifest(packed_run)
    encodings = open_encoder(packed_run, manifest).encode([Example(text=text) for text in TEXTS])
    with open_proven(packed_run, manifest, PACKED.label) as engine:
        expected = engine.infer(encodings).values
    assert infer(grpc, TEXTS, version="2")["logits"] == pytest.approx(expected, abs=1e-6)


def counts(client):
    (of_version,) = client.get_inference_statistics("text", "1")["model_stats"]
    return of_version["inference_count"], of_version["execution_count"]


def keep_busy(server, answered):
    """Send slow requests until `answered` is set, so that others queue up; return their number."""
    count = 0
    with grpc_client.InferenceServerClient(server.grpc) as busy_client:
        while not answered.is_set():
            infer(busy_client, LONG, version="1")
            count += 1
    return count


def test_requests_of_32_clients_are_batched_and_each_gets_its_own_result(
    server, http, exported_run
):
    texts = [f"{text} {number}" for number in range(CLIENTS) for text in TEXTS[:REQUESTS]]
    labels, probabilities = predicted(exported_run, texts)
    start = threading.Barrier(CLIENTS)

    def client(number):
        kind, url = [(http_client, server.url.removeprefix("http://")), (grpc_client, server.grpc)][
            number % 2
        ]
        own_indices = range(number * REQUESTS, (number + 1) * REQUESTS)
        with kind.InferenceServerClient(url) as own_client:
            start.wait()
            return [infer(own_client, [texts[index]], version="1") for index in own_indices]

    answered = threading.Event()
    before = counts(http)
    with ThreadPoolExecutor(CLIENTS + 1) as threads:
        busy = threads.submit(keep_busy, server, answered)
        try:
            results = [
                result for answers in threads.map(client, range(CLIENTS)) for result in answers
            ]
        finally:
            answered.set()
    expected = CLIENTS * REQUESTS + len(LONG) * busy.result()
    # Triton counts requests after it has sent the responses.
    deadline_s = time.monotonic() + 30
    while (after := counts(http))[0] < before[0] + expected and time.monotonic() < deadline_s:
        time.sleep(0.01)
    inferences, executions = np.subtract(after, before)
    assert [result["label"][0, 0].decode() for result in results] == labels
    assert np.concatenate([result["probabilities"] for result in results]) == pytest.approx(
        probabilities, abs=1e-6
    )
    assert inferences == expected
    assert executions - busy.result() < CLIENTS * REQUESTS / 2


def test_an_invalid_text_fails_only_its_own_request(server, http):
    """The other requests of the batch succeed; all of them queue up after a slow request."""
    surrogate, last = "\ud800".encode(errors="surrogatepass"), []

    def client(text):
        with grpc_client.InferenceServerClient(server.grpc) as own_client:
            try:
                return infer(own_client, [text], version="1")["label"].tolist()
            except InferenceServerException as error:
                return error.message()

    texts = ["good"] * 7 + [surrogate] + ["good"] * 8
    with ThreadPoolExecutor(len(texts) + 1) as threads:
        last.append(threads.submit(infer, http, ["word " * 500] * 32, version="1"))
        results = list(threads.map(client, texts))
    bad = results.pop(7)
    assert bad == "input 0: text is not UTF-8: invalid continuation byte at byte 0"
    assert results == [results[0]] * len(results)
