"""Stored results are compared level by level; incomparable results are reported."""

import numpy as np
import pytest

from pipework.benchmarks.compare.compare import check_regressions, compare, read_bench
from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict
from pipework.benchmarks.results_schema.results import read_result, write_result
from pipework.errors import CheckFailedError, DataError


def with_intervals(result, *, rate=1.0, latency=1.0, spread=0.01, seed=0):
    """Return a copy of a result with scaled figures and with confidence intervals."""
    chance = np.random.default_rng(seed)

    def around(value):
        return (value * (1 - spread), value * (1 + spread))

    def again(level):
        texts_per_s = level.texts_per_s * rate * (1 + spread / 3 * chance.standard_normal())
        times = {
            name: value * latency for name, value in level.latency_ms.model_dump().items() if value
        }
        return level.model_copy(
            update={
                "texts_per_s": texts_per_s,
                "interval_texts_per_s": around(texts_per_s),
                "freedom": 5,
                "latency_ms": level.latency_ms.model_copy(update=times),
                "interval_ms": {name: around(times[name]) for name in ("p50", "p99")},
            }
        )

    return result.model_copy(
        update={
            "levels": tuple(map(again, result.levels)),
            "offline": tuple(map(again, result.offline)),
        }
    )


def verdicts(result, quantity):
    return [
        ratio.verdict
        for level in result.levels
        for ratio in level.ratios
        if ratio.quantity is quantity
    ]


def test_a_faster_server_is_detected_at_every_level(served):
    comparison = compare(
        with_intervals(served), with_intervals(served, rate=1.3, latency=0.7, seed=1)
    )
    assert [level.name for level in comparison.levels] == [
        "1 client",
        "2 clients",
        "4 clients",
        "8 clients",
        "16 clients",
    ]
    for quantity in Quantity:
        assert verdicts(comparison, quantity) == [RatioVerdict.FASTER] * 5
    first = comparison.levels[0].ratios[0]
    assert first.low < 1.3 < first.high
    assert first.ratio == pytest.approx(1.3, rel=0.02)
    check_regressions(comparison)


def test_offline_levels_have_verdicts(offline):
    comparison = compare(
        with_intervals(offline), with_intervals(offline, rate=0.7, latency=1.4, seed=1)
    )
    assert comparison.levels[0].name == "tokenizing, 1 per call"
    for quantity in Quantity:
        assert verdicts(comparison, quantity) == [RatioVerdict.SLOWER] * 6


def test_a_slower_server_is_a_regression_with_exit_code_3(served):
    comparison = compare(with_intervals(served), with_intervals(served, rate=0.8, seed=1))
    assert verdicts(comparison, Quantity.TEXTS_PER_S) == [RatioVerdict.SLOWER] * 5
    assert verdicts(comparison, Quantity.P99) == [RatioVerdict.NO_DIFFERENCE] * 5
    with pytest.raises(
        CheckFailedError, match=r"1 client: texts/s 0\.[78]\d times .*, and 4 more"
    ) as caught:
        check_regressions(comparison)
    assert caught.value.exit_code == 3
    assert len(caught.value.details.splitlines()) == 5


def test_the_same_server_twice_shows_no_difference(served):
    comparison = compare(
        with_intervals(served, spread=0.03), with_intervals(served, spread=0.03, seed=1)
    )
    assert {ratio.verdict for level in comparison.levels for ratio in level.ratios} == {
        RatioVerdict.NO_DIFFERENCE
    }


def test_a_difference_within_the_tolerance_is_no_difference(served):
    comparison = compare(
        with_intervals(served, spread=1e-4), with_intervals(served, rate=0.96, spread=1e-4, seed=1)
    )
    assert set(verdicts(comparison, Quantity.TEXTS_PER_S)) == {RatioVerdict.NO_DIFFERENCE}


def test_more_failures_are_a_regression_even_if_the_server_is_faster(served):
    calm = served.model_copy(update={"levels": served.levels[:4]})
    failing = calm.levels[3].model_copy(update={"errors": {"HTTP 500": 50}})
    after = calm.model_copy(update={"levels": (*calm.levels[:3], failing)})
    comparison = compare(with_intervals(calm), with_intervals(after, rate=2, latency=0.5))
    (worse,) = comparison.regressions
    assert worse.startswith("8 clients: ")
    assert "of requests fail, baseline 0.0%" in worse


def test_costs_of_both_sides_are_reported(served):
    before = served.model_copy(
        update={"levels": tuple(level.with_cost(1) for level in served.levels)}
    )
    after = served.model_copy(
        update={"levels": tuple(level.with_cost(2) for level in served.levels)}
    )
    was, now = compare(before, after).levels[0].cost_per_million
    assert now == pytest.approx(2 * was, rel=1e-3)
    assert compare(served, after).levels[0].cost_per_million is None


def test_results_without_intervals_have_ratios_but_no_verdict(served, offline):
    for result in (served, offline):
        comparison = compare(result, result)
        ratios = [ratio for level in comparison.levels for ratio in level.ratios]
        assert {(ratio.ratio, ratio.verdict) for ratio in ratios} == {(1, RatioVerdict.UNKNOWN)}
        check_regressions(comparison)


def test_a_level_without_successes_has_no_ratio(served):
    nothing = {"latency_ms": None, "histogram": None, "texts_per_s": 0, "requests": 0}
    failed_level = served.levels[0].model_copy(update={**nothing, "errors": {"timeout": 9}})
    after = served.model_copy(update={"levels": (failed_level, *served.levels[1:])})
    comparison = compare(served, after)
    assert comparison.levels[0].ratios == ()
    assert comparison.regressions == ("1 client: 100.0% of requests fail, baseline 0.0%",)


def test_levels_of_only_one_result_are_named(served, open_level):
    more = served.model_copy(update={"levels": (*served.levels[1:], open_level(50))})
    comparison = compare(served, more)
    assert comparison.unmatched == ("1 client, only before", "50 requests/s, poisson, only after")
    assert len(comparison.levels) == 4


def test_another_workload_is_not_compared(served):
    workload = served.workload.model_copy(update={"mean_length": 300.0, "seed": 1})
    with pytest.raises(
        DataError, match=r"nothing to compare: other workload: mean length 121\.4, "
    ):
        compare(served, served.model_copy(update={"workload": workload}))
    with pytest.raises(DataError, match="the results have no level in common"):
        compare(served, served.model_copy(update={"levels": ()}))


def test_texts_counted_by_different_tokenizers_are_the_same_workload(served):
    counts = (None, 23.4, 25.0)
    uncounted, first, second = (
        served.model_copy(
            update={"workload": served.workload.model_copy(update={"mean_tokens": count})}
        )
        for count in counts
    )
    assert compare(uncounted, first).differences == ()
    assert compare(first, second).differences == ("mean tokens of a text: 23.4, now 25.0",)


def test_different_machine_commit_and_versions_are_reported(served):
    was = served.provenance
    now = was.model_copy(
        update={
            "machine": was.machine.model_copy(update={"cpu": "Intel Xeon"}),
            "git_commit": "fedcba9876543210fedcba9876543210fedcba98-dirty",
            "versions": was.versions | {"onnxruntime": "1.32.0"},
        }
    )
    comparison = compare(served, served.model_copy(update={"provenance": now}))
    assert comparison.differences == (
        "other machine: cpu AMD EPYC, now Intel Xeon",
        "commit: 0123456789, now fedcba9876-dirty",
        "onnxruntime: 1.31.1, now 1.32.0",
    )


def test_only_results_of_pipe_bench_are_compared(trained, served, tmp_path):
    path = tmp_path / "result.json"
    write_result(path, trained)
    with pytest.raises(DataError, match=r"is not a result of schema 1: .*'training'"):
        read_bench(path)
    write_result(path, compare(served, served))
    with pytest.raises(DataError, match="expected a result of pipe bench, found kind comparison"):
        read_bench(path)
    write_result(path, served)
    assert read_bench(path) == served


def test_a_comparison_is_stored_and_read(served, tmp_path):
    comparison = compare(with_intervals(served), with_intervals(served, rate=0.8))
    write_result(tmp_path / "c.json", comparison)
    assert read_result(tmp_path / "c.json") == comparison
