"""tritonclient asks our server over gRPC as it asks Triton."""

import json
import queue
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2 as proto
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.grpc import MAX_WATCHES
from pipework.serve.inference_protocol.infer_request import packed
from pipework.serve.inference_protocol.stream import MessageLimits
from tests.serve.test_run import metric, wait_for

MAX_STREAMS = MessageLimits.of(LimitSettings()).streams
LONG = ["rain sun wind goal team match bank rate stock " * 3] * 400
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFER = "/inference.GRPCInferenceService/ModelInfer"
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as client:
        yield client


def tensor(texts):
    array = np.array([text.encode() for text in texts], np.object_)[:, None]
    found = triton.InferInput("text", list(array.shape), "BYTES")
    found.set_data_from_numpy(array)
    return found


def request(name, texts=("rain",), **given):
    raw = packed(np.array([text.encode() for text in texts], np.object_))
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [len(texts)]}]
    values = {"model_name": name, "inputs": inputs, "raw_input_contents": [raw]}
    return proto.ModelInferRequest(**{**values, **given})


def test_the_stage_times_are_in_the_trailing_metadata(stub, name):
    _, call = stub.ModelInfer.with_call(request(name))
    timing = dict(call.trailing_metadata())["server-timing"]
    assert [part.partition(";dur=")[0] for part in timing.split(", ")] == [
        *("tokenize", "queue", "infer", "decode")
    ]


def test_errors_have_a_message_and_a_status(client, name):
    def refused(match, texts=("rain",), **options):
        with pytest.raises(InferenceServerException, match=match) as caught:
            client.infer(name, [tensor(texts)], **options)
        assert "\n" not in caught.value.message()
        return caught.value.status().removeprefix("StatusCode.")

    assert refused("at most 1024 texts, found 1025", ["a"] * 1025) == "INVALID_ARGUMENT"
    assert refused("at most 100000 characters", ["r" * 100_001]) == "INVALID_ARGUMENT"
    assert refused("[Dd]eadline", client_timeout=-1) == "DEADLINE_EXCEEDED"
    assert refused("larger than max", ["r" * 2**20] * 9) == "RESOURCE_EXHAUSTED"
    with pytest.raises(InferenceServerException, match="TraceSetting is not supported"):
        client.get_trace_settings()


def test_a_message_that_is_too_large_after_decompression_is_refused(channel):
    infer = channel.unary_unary(INFER)
    with pytest.raises(grpc.RpcError) as caught:
        infer(b"\0" * 2**26, compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bytes_that_cannot_be_parsed_end_a_stream_after_earlier_responses(channel, name):
    stream = channel.stream_stream(STREAM)
    sent = [request(name, id="a").SerializeToString(), b"\xff" * 9]
    answers = stream(iter(sent))
    assert b"a" in next(answers)
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_cancelled_request_leaves_the_queue(slow_run, start_server):
    server, much = start_server(slow_run), LONG[:250]
    with triton.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(1) as pool:
        (model,) = client.get_model_repository_index().models
        first = pool.submit(client.infer, model.name, [tensor(much)])
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 1)
        second = client.async_infer(model.name, [tensor(much)], lambda **_: None)
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 2)
        second.cancel()
        wait_for(lambda: metric(server.url, "pipework_queue_requests") < 2)
        assert first.result().as_numpy("label").shape == (len(much), 1)
    with httpx.Client(base_url=server.url) as http:
        stats = http.get("/v2/models/stats").json()["model_stats"]
    assert stats[0]["inference_stats"]["success"]["count"] == 1
    assert server.stop() == 0


def test_a_client_with_a_retry_policy_retries_refused_calls(server):
    """Which it does only if nothing comes before the status (gRPC's A6, client retries)."""
    policy = {"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.01s"}
    policy |= {"backoffMultiplier": 1, "retryableStatusCodes": ["NOT_FOUND"]}
    config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
    options = [("grpc.enable_retries", 1), ("grpc.service_config", json.dumps(config))]

    def refused():
        found = re.findall(
            r'requests_total\{door="grpc".*status="NOT_FOUND"\} ([0-9.]+)',
            httpx.get(f"{server.url}/metrics").text,
        )
        return sum(map(float, found))

    before = refused()
    with (
        grpc.insecure_channel(server.grpc, options) as channel,
        pytest.raises(grpc.RpcError, match="NOT_FOUND"),
    ):
        GRPCInferenceServiceStub(channel).ModelInfer(request("unknown"))
    assert refused() == before + 3


def test_a_full_queue_has_a_retry_time(slow_run, start_server):
    server = start_server(slow_run, "queue.tokens=1000")
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        (model,) = stub.RepositoryIndex(proto.RepositoryIndexRequest()).models
        calls = [stub.ModelInfer.future(request(model.name, LONG * 2)) for _ in range(6)]
        wait_for(lambda: metric(server.url, "pipework_queue_tokens") >= 5_000)
        with pytest.raises(grpc.RpcError, match="the queue is full") as refused:
            stub.ModelInfer(request(model.name))
        server.process.kill()
        assert all(call.exception() for call in calls)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(refused.value.trailing_metadata())["retry-after"]) >= 1


def test_sigterm_finishes_accepted_requests_and_ends_streams_and_watches(slow_run, start_server):
    server = start_server(slow_run, "grace_s=300")
    found: queue.Queue[object] = queue.Queue()
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        (model,) = stub.RepositoryIndex(proto.RepositoryIndexRequest()).models
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        with triton.InferenceServerClient(server.grpc) as client:
            client.start_stream(lambda result, error: found.put(error or result))
            client.async_stream_infer(model.name, [tensor(LONG[:100])], request_id="stream")
            accepted = [stub.ModelInfer.future(request(model.name, LONG[:100])) for _ in range(3)]
            wait_for(lambda: metric(server.url, "pipework_queue_requests") >= 4)
            began_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began_s < 200  # the grace time is 300
            assert found.get(timeout=60).get_response().id == "stream"
            assert "the server is stopping" in found.get(timeout=20).message()
        assert [len(one.result().outputs) for one in accepted] == [4] * 3
        assert [one.status for one in watch] == [NOT_SERVING]


def test_health_of_the_server_and_its_service(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "inference.GRPCInferenceService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    with pytest.raises(grpc.RpcError, match="unknown service 'other'") as caught:
        health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_the_number_of_open_watches_is_limited(channel):
    health = health_pb2_grpc.HealthStub(channel)
    held = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(MAX_WATCHES)]
    assert {next(one).status for one in held} == {SERVING}
    with pytest.raises(grpc.RpcError, match="64 watches are open, which is the limit") as caught:
        next(health.Watch(health_pb2.HealthCheckRequest()))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for one in held:
        one.cancel()
    wait_for(lambda: may_watch(health))


def may_watch(health) -> bool:
    watch = health.Watch(health_pb2.HealthCheckRequest())
    try:
        return next(watch).status == SERVING
    except grpc.RpcError:
        return False
    finally:
        watch.cancel()


def test_the_number_of_open_streams_is_limited(run, start_server):
    server = start_server(run)
    never: queue.Queue[None] = queue.Queue()
    with ExitStack() as last:
        stub = GRPCInferenceServiceStub(last.enter_context(grpc.insecure_channel(server.grpc)))
        (model,) = stub.RepositoryIndex(proto.RepositoryIndexRequest()).models
        asked = request(model.name)
        last.callback(lambda: [never.put(None) for _ in range(MAX_STREAMS + 1)])
        open_streams = []  # a call that nobody holds is cancelled
        for _ in range(MAX_STREAMS):
            idle = stub.ModelStreamInfer(chain([asked], iter(never.get, None)))
            open_streams.append(idle)
            assert next(idle).infer_response.outputs
        refused = stub.ModelStreamInfer(chain([asked], iter(never.get, None)))
        message = f"{MAX_STREAMS} streams are open, which is the limit"
        with pytest.raises(grpc.RpcError, match=message) as caught:
            next(refused)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.ModelInfer(asked).outputs


def test_services_are_listed_by_reflection(channel):
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(iter([asked]))
    names = {one.name for one in answer.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


def test_a_taken_port_is_reported_before_the_model_is_loaded(tmp_path, server, launch):
    port = int(server.grpc.rpartition(":")[2])
    said = launch(tmp_path / "no run", grpc_port=port).finish().stderr
    assert said.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert said.count("\n") == 1


def counted(server, status):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    name = f'pipework_requests_total{{door="grpc",model="topics",status="{status}"}}'
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0)


def test_calls_are_counted_by_status_and_return_their_id(server, stub, name):
    before = counted(server, "OK"), counted(server, "INVALID_ARGUMENT")
    _, call = stub.ModelInfer.with_call(request(name), metadata=[("x-request-id", "mine")])
    assert dict(call.trailing_metadata())["x-request-id"] == "mine"
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request(name, raw_input_contents=[b"x"]))
    assert dict(caught.value.trailing_metadata())["x-request-id"]
    after = counted(server, "OK"), counted(server, "INVALID_ARGUMENT")
    assert after == (before[0] + 1, before[1] + 1)


def test_each_request_of_a_stream_is_counted(server, stub, name):
    before = counted(server, "OK"), counted(server, "INVALID_ARGUMENT")
    asked = [request(name), request(name, raw_input_contents=[b"x"]), request(name)]
    assert len(list(stub.ModelStreamInfer(iter(asked)))) == 3
    after = counted(server, "OK"), counted(server, "INVALID_ARGUMENT")
    assert after == (before[0] + 2, before[1] + 1)
