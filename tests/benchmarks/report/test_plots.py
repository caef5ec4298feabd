"""The plots of levels and of comparisons, read as SVG."""

from xml.etree import ElementTree as ET

import pytest

from pipework.benchmarks.report import plots
from pipework.benchmarks.report.plots import COLOURS, ratio_plot
from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict

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


def test_each_level_with_latencies_has_a_histogram(served):
    first = served.levels[0].model_copy(update={"histogram": None})
    found = texts(plots.histograms([first, *served.levels[1:]]))
    assert [text for text in found if "client" in text] == [
        "2 clients",
        "4 clients",
        "8 clients",
        "16 clients",
    ]


def test_offline_levels_are_bars_with_their_rates(offline):
    found = texts(plots.offline(offline.offline, "texts per second by stage"))
    assert {"tokenizing, 1 per call", "onnx-fp32, 32 per call", "26,400", "520"} <= {*found}


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


def with_ratio(comparison, **change):
    """Return the comparison with this change of every ratio."""
    levels = tuple(
        level.model_copy(
            update={"ratios": tuple(ratio.model_copy(update=change) for ratio in level.ratios)}
        )
        for level in comparison.levels
    )
    return comparison.model_copy(update={"levels": levels})


def test_each_level_with_the_quantity_is_a_row(comparison):
    found = texts(ratio_plot(comparison, Quantity.P99))
    names = [level.name for level in comparison.levels]
    assert [text for text in found if text in names] == names
    assert "p99, relative to the baseline" in found


@pytest.mark.parametrize(
    ("ratio", "tick", "absent"), [(1.1, "1.05", "2"), (8.0, "5", "1.05"), (0.05, "0.1", "0.95")]
)
def test_the_ticks_follow_the_range_of_the_ratios(comparison, ratio, tick, absent):
    given = with_ratio(comparison, ratio=ratio, low=ratio * 0.98, high=ratio * 1.02)
    found = texts(ratio_plot(given, Quantity.P50))
    assert {"1", tick} <= {*found}
    assert absent not in found


def test_faster_and_slower_have_their_own_colours():
    assert {*COLOURS} == {*RatioVerdict}
    faster, slower = COLOURS[RatioVerdict.FASTER], COLOURS[RatioVerdict.SLOWER]
    assert len({faster, slower, COLOURS[RatioVerdict.NO_DIFFERENCE]}) == 3
