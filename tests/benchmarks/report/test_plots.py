"""The plots of levels, read as SVG."""

from xml.etree import ElementTree as ET

import pytest

from pipework.benchmarks.report import plots

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    """Return the texts of a plot."""
    return ["".join(node.itertext()).strip() for node in ET.fromstring(drawn).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (plots.throughput, {"texts/s", "concurrent clients", "1", "2", "4", "8", "16"}),
        (plots.latencies, {"p50", "p90", "p95", "p99", "milliseconds", "16"}),
    ],
)
def test_a_plot_of_levels_has_its_axes_and_loads(served, draw, expected):
    assert expected <= {*texts(draw(served.levels))}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 12, [1, 2, 5, 10]),
        (3, 4, [2, 5]),  # narrow: the round values around it
        (1, 1, [1, 1]),
        (10, 20, [10, 20]),
    ],
)
def test_ticks_are_round_values(low, high, expected):
    assert plots.round_ticks(low, high) == pytest.approx(expected)


def test_a_wide_range_has_few_ticks():
    assert len(plots.round_ticks(0.1, 100_000)) <= 10


def opened(loaded):
    return [level for level in loaded.levels if level.rate is not None]


def test_the_limits_and_misses_of_an_objective_are_drawn(loaded):
    with_slo = texts(plots.latencies(opened(loaded), loaded.slo))
    assert {"p99 limit", "missed", "p50", "p95", "p99"} <= {*with_slo}
    without = texts(plots.latencies(opened(loaded), None))
    assert {"p99 limit", "missed"}.isdisjoint(without)


def test_an_objective_that_was_met_has_no_crosses(loaded):
    trials = tuple(trial.model_copy(update={"missed": ()}) for trial in loaded.slo.trials)
    met = loaded.slo.model_copy(update={"trials": trials})
    found = texts(plots.latencies(opened(loaded), met))
    assert "p99 limit" in found
    assert "missed" not in found


def test_the_latency_axis_includes_the_largest_limit(loaded):
    limit = loaded.slo.limits[0].model_copy(update={"most_ms": 9000})
    slo = loaded.slo.model_copy(update={"limits": (limit,)})
    assert "10,000" in texts(plots.latencies(opened(loaded), slo))
    assert "10,000" not in texts(plots.latencies(opened(loaded), loaded.slo))


def test_goodput_is_drawn_against_the_texts_sent(loaded):
    found = texts(plots.throughput(opened(loaded)))
    assert {"texts/s sent", "texts/s", "all sent", "answered in time"} <= {*found}
    assert "600" in found  # a tick: the largest rate is 90 requests/s of 8 texts
