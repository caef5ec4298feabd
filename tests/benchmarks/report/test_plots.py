"""Plots of closed-loop and offline levels are SVG with all levels and values."""

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
        (plots.latency_against_throughput, {"p50", "p99", "texts/s", "1", "16"}),
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
