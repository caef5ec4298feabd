"""The remote engine with a real gRPC server that computes with ONNX Runtime."""

import asyncio
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.data.examples import Example
from pipework.errors import CheckFailedError, NotReadyError, RunFolderError
from pipework.run_folder.manifest import read_manifest
from pipework.serve.config import RepositorySettings, ServeSettings
from pipework.serve.engines import remote
from pipework.serve.engines.remote import TensorModel, open_remote
from pipework.serve.models.open_models import open_models

CONFIG = """
name: "front"
max_batch_size: 8
parameters { key: "tensor_model" value { string_value: "front-engine" } }
parameters { key: "first_only" value { string_value: "true" } }
"""


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Computes like a tensor model and records the number of texts of each call."""

    def __init__(self, graph):
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self.calls, self.wrong, self.datatype, self.loaded = [], 0.0, "FP32", True

    def ModelInfer(self, request, context):  # noqa: N802
        if not self.loaded:
            context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model")
        assert (request.model_name, request.model_version) == ("front-engine", "1")
        arrays = {
            one.name: np.frombuffer(raw, np.int64).reshape(one.shape)
            for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        (logits,) = self.session.run(["logits"], arrays)
        self.calls.append(len(logits))
        output = service_pb2.ModelInferResponse.InferOutputTensor(
            name="logits", datatype=self.datatype, shape=logits.shape
        )
        raw = (logits + np.float32(self.wrong)).tobytes()
        return service_pb2.ModelInferResponse(outputs=[output], raw_output_contents=[raw])

    def start(self, port=0):
        self.server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def stop(self):
        self.server.stop(None).wait()

    @property
    def url(self):
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def triton(run):
    serving = Triton(run / "engines" / "onnx" / "model.onnx")
    serving.start()
    yield serving
    serving.stop()


@pytest.fixture
def version(front, tmp_path):
    """A version of a text model in a repository, and the rows that prove it."""
    model = tmp_path / "repository" / "front"
    shutil.copytree(front[0], model / "1")
    (model / "config.pbtxt").write_text(CONFIG)
    return model / "1", front[2]


def opened(version, url):
    behind = TensorModel.of(text_format.Parse(CONFIG, ModelConfig()))
    return open_remote(version, read_manifest(version), behind, url)


def test_it_is_proven_when_it_is_opened_and_its_calls_are_no_larger_than_triton_takes(
    version, triton
):
    run, rows = version
    with opened(run, triton.url) as engine:
        assert triton.calls == [1] * 42 + [8] * 5 + [2]
        found = engine.infer(rows.encodings).values
        assert found == pytest.approx(rows.outputs.values, abs=1e-5)
        assert triton.calls[48:] == [8] * 5 + [2]
        assert engine.infer([]).values.shape == (0, 3)


def test_an_unreachable_triton_and_a_missing_model_are_reported(version, triton):
    triton.loaded = False
    with pytest.raises(NotReadyError, match=r"front-engine 1 on .*NOT_FOUND: Request"):
        opened(version[0], triton.url)
    triton.stop()
    with pytest.raises(NotReadyError, match=r"failed: UNAVAILABLE: .*refused"):
        opened(version[0], triton.url)


def test_a_stopped_triton_is_not_ready_until_it_is_back(version, triton, monkeypatch):
    run, rows = version
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)
    with opened(run, triton.url) as engine:
        triton.stop()
        for _ in range(5):
            with pytest.raises(NotReadyError, match="UNAVAILABLE"):
                engine.infer(rows.encodings[:1])
        triton.start(triton.port)
        before = len(triton.calls)
        found = until_ready(lambda: engine.infer(rows.encodings[:1]).values)
        assert found == pytest.approx(rows.outputs.values[:1], abs=1e-5)
        assert len(triton.calls) - before == 48 + 1  # it was proven again


def until_ready(ask, tries=200):
    for _ in range(tries):
        try:
            return ask()
        except NotReadyError:
            threading.Event().wait(0.05)
    return ask()


def test_after_a_failure_triton_is_left_alone_for_a_while(version, triton, monkeypatch):
    monkeypatch.setattr("pipework.serve.engines.remote.PAUSE_S", 60.0)
    run, rows = version
    with opened(run, triton.url) as engine:
        before = len(triton.calls)
        triton.loaded = False
        with pytest.raises(NotReadyError, match="NOT_FOUND") as first:
            engine.infer(rows.encodings[:1])
        triton.loaded = True
        with pytest.raises(NotReadyError) as second:
            engine.infer(rows.encodings[:1])
        assert str(first.value) == str(second.value)
        assert len(triton.calls) == before


def test_a_model_that_changed_during_an_outage_fails_parity(version, triton, monkeypatch):
    run, rows = version
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)
    with opened(run, triton.url) as engine:
        triton.loaded = False
        with pytest.raises(NotReadyError):
            engine.infer(rows.encodings[:1])
        triton.loaded, triton.wrong = True, 0.01
        with pytest.raises(CheckFailedError, match="differ from the checkpoint on Triton"):
            engine.infer(rows.encodings[:1])


def test_a_response_without_logits_is_reported(version, triton):
    triton.datatype = "FP16"
    with pytest.raises(NotReadyError, match=r"expected logits, FP32 .*, found .*'FP16'"):
        opened(version[0], triton.url)


def test_a_triton_that_is_silent_is_given_up(version, monkeypatch):
    monkeypatch.setattr(remote, "CALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotReadyError, match="DEADLINE_EXCEEDED"):
            opened(version[0], url)


def asked(models):
    async def ask():
        with models.lease("front") as one:
            found = await one.predict([Example(text="rain"), Example(text="goal")])
        return [one.label for one in found.value]

    return asyncio.run(ask())


def test_a_repository_serves_a_model_whose_logits_triton_computes(version, triton):
    triton.stop()
    repository = version[0].parents[1]
    shutil.copytree(repository / "front", repository / "second")
    config = CONFIG.replace('name: "front"', 'name: "second"')
    (repository / "second" / "config.pbtxt").write_text(config)
    settings = ServeSettings(triton_url=triton.url, models=RepositorySettings(poll_s=0.05))
    with pytest.raises(RunFolderError, match=r"front 1: the model front-engine 1 on .* failed: "):
        open_models(repository, settings)
    triton.start(triton.port)
    with open_models(repository, settings) as models:
        assert models.names == ["front", "second"]
        assert asked(models) == ["weather", "sport"]
        triton.stop()
        with pytest.raises(NotReadyError, match="failed: "):
            asked(models)


def test_a_model_is_served_when_triton_has_come(version, triton, kept_run):
    repository = version[0].parents[1]
    shutil.copytree(kept_run, repository / "alone" / "1")
    triton.loaded = False
    settings = ServeSettings(triton_url=triton.url, models=RepositorySettings(poll_s=0.05))
    with open_models(repository, settings) as models:
        assert models.names == ["alone"]
        with pytest.raises(NotReadyError, match=r"model front 1 is not served: .*NOT_FOUND"):
            asked(models)
        triton.loaded = True
        limit_s = time.monotonic() + 20
        while "front" not in models.names:
            assert time.monotonic() < limit_s
            time.sleep(0.02)
        assert asked(models) == ["weather", "sport"]


def test_a_tokenizer_that_was_changed_is_not_served(version, triton):
    tokenizer = version[0] / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    with pytest.raises(RunFolderError, match=r"tokenizer\.json changed"):
        opened(version[0], triton.url)
