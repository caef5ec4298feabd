"""The limit of the load generator is measured without the server."""

import pytest

from pipework.benchmarks.load import generator_limit as module
from pipework.benchmarks.load.generator_limit import generator_limit
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import target
from pipework.errors import NotReadyError
from pipework.progress import NullProgress

WORKLOAD = Workload.synthetic(texts_per_request=1, seed=0)


def measure(url):
    return generator_limit(target(url), WORKLOAD, response_bytes=100, progress=NullProgress())


def test_there_is_no_responder_for_grpc():
    assert measure("grpc://127.0.0.1:9/model") is None


def test_the_rate_is_that_of_a_local_responder(serve, monkeypatch):
    short = LevelDuration(warmup_s=0.05, duration_s=0.3, limit_s=0.3)
    monkeypatch.setattr(module, "DURATION", short)
    server = serve(delay_s=1.0)  # slower than any responder
    assert measure(server.url) > 16
    assert server.bodies == []


def test_a_responder_that_does_not_start_is_reported(monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/bin/true")
    with pytest.raises(NotReadyError, match=r"responder .* did not start"):
        measure("http://127.0.0.1:9")
