"""A trace is replayed as recorded."""

import pytest

from pipework.benchmarks.load.loops import replay
from pipework.benchmarks.load.slo import parse_slo
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.run_server import bench_server
from pipework.benchmarks.targets import target
from pipework.errors import ConfigError, DataError
from pipework.progress import NullProgress


def trace(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return Trace.read(path)


def test_requests_are_replayed_at_their_times_unchanged(serve, tmp_path):
    recorded = trace(
        tmp_path,
        '{"at_s": 10.0, "texts": ["a", "b"]}',
        '{"at_s": 10.2, "texts": ["c"]}',
        '{"at_s": 10.8, "inputs": [{"text": "d", "text_pair": "e"}]}',
    )
    assert recorded.at_s == pytest.approx((0, 0.2, 0.8))
    assert recorded.duration_s == pytest.approx(1.2)
    server = serve()
    level = replay(target(server.url), recorded, speed=2.0, progress=NullProgress()).level
    assert server.bodies == [
        {"texts": ["a", "b"]},
        {"texts": ["c"]},
        {"inputs": [{"text": "d", "text_pair": "e"}]},
    ]
    assert (level.sent, level.requests, level.texts) == (3, 3, 4)
    assert (level.duration_s, level.rate) == (0.6, 5.0)
    assert (level.arrivals, level.texts_per_request) == ("trace", None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "contains no requests"),
        (('{"texts": ["a"]}',), "trace.jsonl:1: at_s: is missing"),
        (('{"at_s": 1, "texts": []}',), "trace.jsonl:1: texts: expected at least one"),
        (('{"at_s": -1, "texts": ["a"]}',), "trace.jsonl:1: at_s: expected"),
        (
            ('{"at_s": 1, "texts": ["a"]}', '{"at_s": 0.5, "texts": ["a"]}'),
            "trace.jsonl:2: at_s: expected 1 or later",
        ),
    ],
)
def test_an_invalid_trace_is_reported_with_its_line(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        trace(tmp_path, *lines)


@pytest.mark.slow
def test_a_trace_is_a_level_at_its_own_or_at_given_rates(serve, tmp_path):
    lines = [f'{{"at_s": {0.05 * at}, "texts": ["{at}"]}}' for at in range(20)]
    recorded, server = trace(tmp_path, *lines), serve(delay_s=0.005)
    single = bench_server(
        server.url, BenchPlan(trace=recorded, arrivals=Arrivals.TRACE), NullProgress()
    )
    (level,) = single.levels
    assert (level.arrivals, level.sent, level.rate) == ("trace", 20, 20)
    # On a busy machine, requests sent at the same time may arrive in either order.
    order = [int(body["texts"][0]) for body in server.bodies[-20:]]
    assert sorted(order) == [*range(20)]
    assert max(abs(at - index) for index, at in enumerate(order)) <= 4
    limits = parse_slo(["p50=30ms"])
    plan = BenchPlan(trace=recorded, arrivals=Arrivals.TRACE, rates=(40, 80), limits=limits)
    fast = bench_server(server.url, plan, NullProgress())
    assert [level.rate for level in fast.levels] == [40, 80]
    assert [level.duration_s for level in fast.levels] == pytest.approx([0.5, 0.25], abs=0.01)
    assert fast.slo.asked == (40, 80)


def test_an_objective_needs_a_trace_that_is_long_enough(tmp_path):
    recorded = trace(tmp_path, *(f'{{"at_s": {at}, "texts": ["a"]}}' for at in range(20)))
    with pytest.raises(
        ConfigError, match="20 requests are too few for p99: expected at least 200"
    ) as caught:
        BenchPlan(trace=recorded, arrivals=Arrivals.TRACE, limits=parse_slo(["p99=1s"]))
    assert caught.value.hint == "use a longer trace"
    with pytest.raises(
        ConfigError, match="levels of 2 s are too short for p50 <= 1000 ms: expected at least 5 s"
    ):
        BenchPlan(
            trace=recorded, arrivals=Arrivals.TRACE, rates=(10,), limits=parse_slo(["p50=1s"])
        )
