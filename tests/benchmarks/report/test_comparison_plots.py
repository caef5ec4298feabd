"""Plots of ratios with their intervals."""

from xml.etree import ElementTree as ET

import pytest

from pipework.benchmarks.compare.compare import compare
from pipework.benchmarks.report.comparison_plots import COLOURS, ratio_plot
from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    return ["".join(node.itertext()).strip() for node in ET.fromstring(drawn).iter(f"{SVG}text")]


def with_ratio(comparison, **change):
    """Return the comparison with this change of every ratio."""
    levels = tuple(
        level.model_copy(
            update={"ratios": tuple(ratio.model_copy(update=change) for ratio in level.ratios)}
        )
        for level in comparison.levels
    )
    return comparison.model_copy(update={"levels": levels})


@pytest.fixture
def comparison(served):
    return compare(served, served)


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


def test_a_ratio_without_an_interval_is_a_point(comparison):
    given = with_ratio(comparison, low=None, high=None, verdict=RatioVerdict.UNKNOWN)
    with_interval = with_ratio(comparison, low=0.9, high=1.1, verdict=RatioVerdict.UNKNOWN)
    assert ratio_plot(given, Quantity.P50).count("<path") < ratio_plot(
        with_interval, Quantity.P50
    ).count("<path")


def test_faster_and_slower_have_their_own_colours():
    assert {*COLOURS} == {*RatioVerdict}
    faster, slower = COLOURS[RatioVerdict.FASTER], COLOURS[RatioVerdict.SLOWER]
    others = {COLOURS[RatioVerdict.NO_DIFFERENCE], COLOURS[RatioVerdict.UNKNOWN]}
    assert len({faster, slower} | others) == 3
