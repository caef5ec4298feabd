"""A gRPC server may return invalid statistics."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import target
from pipework.progress import NullProgress


class GarbageHandler(grpc.GenericRpcHandler):
    """Answers every method with bytes that are not a valid message."""

    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"\xff\xff")


@pytest.fixture
def port():
    server = grpc.server(ThreadPoolExecutor(4), handlers=(GarbageHandler(),))
    bound_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield bound_port
    server.stop(None).wait()


def test_a_server_with_invalid_statistics_is_measured_without_stages(port):
    spec = LoadSpec(
        workload=Workload.synthetic(texts_per_request=1, seed=0),
        load=OfferedLoad(concurrency=2),
        duration=LevelDuration(warmup_s=0.1, duration_s=0.3),
    )
    level = closed_loop(target(f"grpc://127.0.0.1:{port}/model"), spec, NullProgress()).level
    assert level.requests > 0
    assert (level.errors, level.stages_ms) == ({}, {})
