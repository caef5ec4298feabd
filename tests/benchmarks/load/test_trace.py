"""A trace is sent as it was recorded."""

import pytest

from pipework.benchmarks.load.open_loop import replay
from pipework.benchmarks.load.slo import parse_slo
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.plan import Plan
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.run_server import bench_server
from pipework.benchmarks.targets import target
from pipework.errors import ConfigError, DataError
from pipework.progress import Silent


def trace(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return Trace.read(path)


def test_requests_come_at_their_times_and_as_they_are(serve, tmp_path):
    found = trace(
        tmp_path,
        '{"at_s": 10.0, "texts": ["a", "b"]}',
        '{"at_s": 10.2, "texts": ["c"]}',
        '{"at_s": 10.8, "inputs": [{"text": "d", "text_pair": "e"}]}',
    )
    assert found.at_s == pytest.approx((0, 0.2, 0.8))
    assert found.duration_s == pytest.approx(1.2)
    server = serve()
    level = replay(target(server.url), found, speed=2.0, progress=Silent())
    assert server.bodies == [
        {"texts": ["a", "b"]},
        {"texts": ["c"]},
        {"inputs": [{"text": "d", "text_pair": "e"}]},
    ]
    assert (level.sent, level.requests, level.texts) == (3, 3, 4)
    assert (level.duration_s, level.rate) == (0.6, 5.0)
    assert (level.arrivals, level.texts_per_request) == ("trace", None)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "holds no requests"),
        (('{"texts": ["a"]}',), "trace.jsonl:1: at_s: is missing"),
        (('{"at_s": 1, "texts": []}',), "trace.jsonl:1: texts: expected at least one"),
        (('{"at_s": -1, "texts": ["a"]}',), "trace.jsonl:1: at_s: expected"),
        (
            ('{"at_s": 1, "texts": ["a"]}', '{"at_s": 0.5, "texts": ["a"]}'),
            "trace.jsonl:2: at_s: expected 1 or later",
        ),
    ],
)
def test_what_is_no_trace_is_told_with_its_line(tmp_path, lines, said):
    with pytest.raises(DataError, match=said):
        trace(tmp_path, *lines)


def test_tokens_are_known_where_every_line_counts_its_own(tmp_path):
    first = '{"at_s": 0, "texts": ["a", "b"], "tokens": 30}'
    found = trace(tmp_path, first, '{"at_s": 1, "texts": ["c"], "tokens": 9}')
    assert found.workload.mean_tokens == 13
    assert trace(tmp_path, first, '{"at_s": 1, "texts": ["c"]}').workload.mean_tokens is None
    with pytest.raises(DataError, match=r"trace\.jsonl:1: tokens: expected"):
        trace(tmp_path, '{"at_s": 0, "texts": ["a"], "tokens": 0}')


def test_a_trace_is_a_level_at_its_own_rate_or_at_others(serve, tmp_path):
    lines = [f'{{"at_s": {0.05 * at}, "texts": ["{at}"], "tokens": 4}}' for at in range(20)]
    found, server = trace(tmp_path, *lines), serve(delay_s=0.005)
    own = bench_server(server.url, Plan(trace=found, arrivals=Arrivals.TRACE), Silent())
    (level,) = own.levels
    assert (level.arrivals, level.sent, level.rate) == ("trace", 20, 20)
    assert level.tokens_per_s == pytest.approx(4 * level.texts_per_s, rel=0.01)
    assert own.workload.mean_tokens == 4
    assert " ".join(own.command) == f"pipe bench {server.url} --trace trace.jsonl"
    # What a busy machine sends at once may come in either order.
    asked = [int(body["texts"][0]) for body in server.bodies[-20:]]
    assert sorted(asked) == [*range(20)]
    assert max(abs(at - place) for place, at in enumerate(asked)) <= 4
    limits = parse_slo(["p50=30ms"])
    plan = Plan(trace=found, arrivals=Arrivals.TRACE, rates=(40, 80), limits=limits)
    fast = bench_server(server.url, plan, Silent())
    assert [level.rate for level in fast.levels] == [40, 80]
    assert [level.duration_s for level in fast.levels] == pytest.approx([0.5, 0.25], abs=0.01)
    assert fast.slo.asked == (40, 80)
    words = "--trace trace.jsonl --rate 40,80 --slo p50=30ms"
    assert " ".join(fast.command) == f"pipe bench {server.url} {words}"


def test_an_objective_needs_a_trace_that_is_long_enough(tmp_path):
    found = trace(tmp_path, *(f'{{"at_s": {at}, "texts": ["a"]}}' for at in range(20)))
    with pytest.raises(ConfigError, match="20 requests are too few for p99: expected 200") as told:
        Plan(trace=found, arrivals=Arrivals.TRACE, limits=parse_slo(["p99=1s"]))
    assert told.value.hint == "measure longer: a longer trace"
    with pytest.raises(ConfigError, match="levels of 2 s are too short for p50 of at most 1 s"):
        Plan(trace=found, arrivals=Arrivals.TRACE, rates=(10,), limits=parse_slo(["p50=1s"]))


def test_a_missing_trace_is_told(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Trace.read(tmp_path / "none.jsonl")
