"""A written repository on the real tritonserver, asked by NVIDIA's own client."""

import asyncio
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from pipework.cpu import computes_bf16
from pipework.data.examples import Example
from pipework.errors import MissingDependencyError, NotReadyError
from pipework.export.config import Backend, ExportSettings, TritonSettings
from pipework.export.inference import open_encoder, predict_run
from pipework.export.run import export
from pipework.export.triton.model_repository import Wanted, add_version
from pipework.export.triton.triton_config import FILE_NAME, from_text, to_text
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.config import ServeSettings
from pipework.serve.engines import open_proven
from pipework.serve.models.open_models import open_models
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.ports import Doors
from pipework.serve.triton.server import TritonServer

LOWEST = Precision.BF16 if computes_bf16() else Precision.FP32
PACKED = Variant(format=EngineFormat.OPENVINO, precision=LOWEST, layout=Layout.PACKED)
TEXTS = ["The match went to extra time", "今天下午有雷阵雨", "", "word " * 500, "票房 of the film"]
CLIENTS, REQUESTS = 32, 4
LONG = ["word " * 500] * 32
# In place of the vendor's onnxruntime backend, which is not on PyPI: the same tensors by name.
STAND_IN = """
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        path = f"{args['model_repository']}/{args['model_version']}/model.onnx"
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        return [self.answered(request) for request in requests]

    def answered(self, request):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        (logits,) = self.session.run(["logits"], arrays)
        return triton.InferenceResponse([triton.Tensor("logits", logits)])
"""


@pytest.fixture(scope="module")
def packed_run(exported_run, tmp_path_factory):
    """The exported run with a packed engine of OpenVINO beside its first."""
    run = tmp_path_factory.mktemp("runs") / "both"
    shutil.copytree(exported_run, run)
    export(run, Silent(), [PACKED], settings=ExportSettings(speed_s=0.2))
    return run


@pytest.fixture(scope="module")
def repository(exported_run, packed_run, tmp_path_factory):
    """Version 1 with the ONNX engine, version 2 with the packed one, and a model over another."""
    folder = tmp_path_factory.mktemp("triton") / "repository"
    text = TritonSettings(name="text")
    add_version(exported_run, folder, text, Wanted(), Silent())
    add_version(packed_run, folder, text, Wanted(layout=Layout.PACKED), Silent())
    behind = TritonSettings(name="front", backend=Backend.ONNXRUNTIME)
    add_version(exported_run, folder, behind, Wanted(), Silent())
    stand_in = folder / "front-engine"
    config = from_text((stand_in / FILE_NAME).read_text())
    config.platform, config.backend, config.default_model_filename = "", "python", "model.py"
    (stand_in / FILE_NAME).write_text(to_text(config))
    (stand_in / "1" / "model.py").write_text(STAND_IN)
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


def ask(client, texts, model="text", version="", names=("label", "probabilities", "logits")):
    kind = grpc_client if isinstance(client, grpc_client.InferenceServerClient) else http_client
    given = kind.InferInput("text", [len(texts), 1], "BYTES")
    encoded = [one if isinstance(one, bytes) else one.encode() for one in texts]
    given.set_data_from_numpy(np.array(encoded, np.object_)[:, None])
    outputs = [kind.InferRequestedOutput(name) for name in names]
    found = client.infer(model, [given], model_version=version, outputs=outputs)
    return {name: found.as_numpy(name) for name in names}


def predicted(run, texts):
    """Labels, and probabilities in the order of the logits, as `pipe predict` has them."""
    labels = read_manifest(run).task.labels
    answers = [one for _, one in predict_run(run, [Example(text=text) for text in texts])]
    scores = [[one.scores[label] for label in labels] for one in answers]
    return [one.label for one in answers], np.array(scores)


@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize(("model", "version"), [("text", "1"), ("front", "")])
def test_triton_answers_what_predict_answers(request, exported_run, door, model, version):
    client = request.getfixturevalue(door)
    labels, probabilities = predicted(exported_run, TEXTS)
    for texts in (TEXTS, TEXTS[:1]):
        found = ask(client, texts, model, version)
        assert [label.decode() for label in found["label"][:, 0]] == labels[: len(texts)]
        assert found["probabilities"] == pytest.approx(probabilities[: len(texts)], abs=1e-6)


def test_the_newest_version_answers_and_the_one_before_it_can_be_asked(grpc):
    newest = ask(grpc, TEXTS)["logits"]
    assert np.array_equal(newest, ask(grpc, TEXTS, version="2")["logits"])
    before = ask(grpc, TEXTS, version="1")["logits"]
    assert 0 < np.abs(newest - before).max() < 0.1


def test_a_packed_engine_gives_in_triton_the_logits_that_it_gives_here(grpc, packed_run):
    manifest = read_manifest(packed_run)
    encodings = open_encoder(packed_run, manifest).encode([Example(text=text) for text in TEXTS])
    with open_proven(packed_run, manifest, PACKED.label) as engine:
        expected = engine.infer(encodings)
    assert ask(grpc, TEXTS, version="2")["logits"] == pytest.approx(expected, abs=1e-6)


def counts(client):
    (of_version,) = client.get_inference_statistics("text", "1")["model_stats"]
    return of_version["inference_count"], of_version["execution_count"]


def kept_busy(server, answered):
    """Ask what takes long, again and again, and return how often: what else comes must wait."""
    count = 0
    with grpc_client.InferenceServerClient(server.grpc) as one:
        while not answered.is_set():
            ask(one, LONG, version="1")
            count += 1
    return count


def test_the_requests_of_32_clients_are_merged_and_each_gets_its_own_answer(
    server, http, exported_run
):
    texts = [f"{text} {number}" for number in range(CLIENTS) for text in TEXTS[:REQUESTS]]
    labels, probabilities = predicted(exported_run, texts)
    together = threading.Barrier(CLIENTS)

    def client(number):
        kind, url = [(http_client, server.url.removeprefix("http://")), (grpc_client, server.grpc)][
            number % 2
        ]
        mine = range(number * REQUESTS, (number + 1) * REQUESTS)
        with kind.InferenceServerClient(url) as one:
            together.wait()
            return [ask(one, [texts[index]], version="1") for index in mine]

    answered = threading.Event()
    before = counts(http)
    with ThreadPoolExecutor(CLIENTS + 1) as threads:
        beside = threads.submit(kept_busy, server, answered)
        try:
            found = [one for answers in threads.map(client, range(CLIENTS)) for one in answers]
        finally:
            answered.set()
    asked = CLIENTS * REQUESTS + len(LONG) * beside.result()
    # Triton counts requests after it has answered them.
    until = time.monotonic() + 30
    while (after := counts(http))[0] < before[0] + asked and time.monotonic() < until:
        time.sleep(0.01)
    inferences, executions = np.subtract(after, before)
    assert [one["label"][0, 0].decode() for one in found] == labels
    assert np.concatenate([one["probabilities"] for one in found]) == pytest.approx(
        probabilities, abs=1e-6
    )
    assert inferences == asked
    assert executions - beside.result() < CLIENTS * REQUESTS / 2


def test_a_wrong_text_is_the_error_of_its_own_request(server, http):
    """Its batch mates are answered: the requests wait together behind one that takes long."""
    surrogate, last = "\ud800".encode(errors="surrogatepass"), []

    def client(text):
        with grpc_client.InferenceServerClient(server.grpc) as one:
            try:
                return ask(one, [text], version="1")["label"].tolist()
            except InferenceServerException as error:
                return error.message()

    given = ["good"] * 7 + [surrogate] + ["good"] * 8
    with ThreadPoolExecutor(len(given) + 1) as threads:
        last.append(threads.submit(ask, http, ["word " * 500] * 32, version="1"))
        found = list(threads.map(client, given))
    bad = found.pop(7)
    assert bad == "input 0: text is not UTF-8: invalid continuation byte at byte 0"
    assert found == [found[0]] * len(found)


def test_a_text_pair_is_refused_by_a_model_of_single_texts(http):
    inputs = [http_client.InferInput(name, [1, 1], "BYTES") for name in ("text", "text_pair")]
    for one in inputs:
        one.set_data_from_numpy(np.array([[b"text"]], np.object_))
    with pytest.raises(InferenceServerException, match="text_pair"):
        http.infer("text", inputs)


@pytest.mark.usefixtures("server")
def test_our_server_in_front_of_triton_answers_as_predict_does_and_recovers_with_it(
    repository, exported_run, tmp_path
):
    """Texts are tokenised here and computed by `front-engine` there, proven before they count."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(repository / "front", ours / "front")
    shutil.copytree(repository / "front-engine", theirs / "front-engine")
    doors = Doors(grpc=Doors().chosen().grpc)  # the same again, when it is started again
    settings = ServeSettings(triton_url=f"127.0.0.1:{doors.grpc}")
    labels, probabilities = predicted(exported_run, TEXTS)

    def check(models):
        with models.lease("front") as one:
            found = asyncio.run(one.predict([Example(text=text) for text in TEXTS])).value
        assert [each.label for each in found] == labels
        names = read_manifest(exported_run).task.labels
        scores = [[each.scores[name] for name in names] for each in found]
        assert scores == pytest.approx(probabilities, abs=1e-6)

    with ExitStack() as opened:
        with TritonServer(theirs, doors):
            models = opened.enter_context(open_models(ours, settings))
            check(models)
        with pytest.raises(NotReadyError, match=r"front-engine 1 on .*: UNAVAILABLE"):
            check(models)
        with TritonServer(theirs, doors):
            answered_at_last(lambda: check(models))


def answered_at_last(ask):
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        try:
            return ask()
        except NotReadyError:
            time.sleep(0.2)
    return ask()
