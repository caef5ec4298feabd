"""Every kind of target works with a real server: first response and load."""

import pytest

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.loops import closed_loop, open_loop
from pipework.benchmarks.load.outcome import first_response
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.targets import target
from pipework.errors import PipeError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from tests.commands import served

WORKLOAD = Workload.synthetic(texts_per_request=3, seed=0)
CLIENTS, RATE = OfferedLoad(concurrency=2), OfferedLoad(rate=10, arrivals=Arrivals.POISSON)
KINDS = {
    "rest": ("http://{http}", None),
    "protocol": ("http://{http}/v2/models/{model}", None),
    "grpc": ("grpc://{grpc}/{model}", None),
    "template": ("http://{http}/v1/predict", '{{"texts": "$TEXTS"}}'),
}


def spec(load, duration_s, warmup_s=0.0):
    return LoadSpec(workload=WORKLOAD, load=load, warmup_s=warmup_s, duration_s=duration_s)


@pytest.fixture(scope="module")
def endpoints(exported_run):
    with served(exported_run) as (url, grpc):
        model = read_manifest(exported_run).identity.name
        yield {"http": url.removeprefix("http://"), "grpc": grpc, "model": model}


@pytest.fixture(
    params=[
        "rest",
        "grpc",
        pytest.param("protocol", marks=pytest.mark.slow),
        pytest.param("template", marks=pytest.mark.slow),
    ]
)
def server_target(request, endpoints):
    url, template = KINDS[request.param]
    return target(url.format(**endpoints), template and template.format())


def test_the_first_response_contains_the_model_name(server_target, endpoints):
    assert first_response(server_target, WORKLOAD.requests[0]) == endpoints["model"]
    with pytest.raises(PipeError, match="expected a response with"):
        server_target.check(b"", 2)


def test_load_is_answered_and_server_usage_is_measured(server_target):
    closed_level = closed_loop(server_target, spec(CLIENTS, 0.9, 0.2), NullProgress()).level
    open_level = open_loop(server_target, spec(RATE, 3.0, 0.2), NullProgress(), seed=0).level
    for level in (closed_level, open_level):
        assert level.errors == {}
        assert level.texts == 3 * level.requests > 0
        assert 0 < level.server.cores < 64
        assert level.server.peak_mib > 10
    assert open_level.late < open_level.sent


@pytest.mark.parametrize("kind", ["protocol", "grpc"])
def test_an_unknown_model_is_reported(endpoints, kind):
    url, _ = KINDS[kind]
    unknown_model = target(url.format(**endpoints | {"model": "other"}))
    with pytest.raises(PipeError, match=r"refused the first request: .*other"):
        first_response(unknown_model, WORKLOAD.requests[0])
    level = closed_loop(unknown_model, spec(OfferedLoad(concurrency=1), 0.2), NullProgress()).level
    assert set(level.errors) == {"HTTP 404" if kind == "protocol" else "NOT_FOUND"}


def test_a_missing_grpc_server_is_reported():
    server_target = target("grpc://127.0.0.1:9/model")
    with pytest.raises(PipeError, match=r"no response from grpc://127\.0\.0\.1:9/model"):
        first_response(server_target, WORKLOAD.requests[0])
    load = OfferedLoad(rate=20, arrivals=Arrivals.POISSON)
    level = open_loop(server_target, spec(load, 0.3), NullProgress(), seed=0).level
    assert set(level.errors) == {"UNAVAILABLE"}
