"""Properties of a stored comparison."""

import pytest

from pipework.benchmarks.results_schema.comparison import (
    MORE_FAILURES,
    Quantity,
    Ratio,
    RatioVerdict,
)


def ratio(verdict, quantity=Quantity.P99, value=1.25):
    return Ratio(
        quantity=quantity, before=4, after=4 * value, ratio=value, low=value, high=value,
        verdict=verdict,
    )  # fmt: skip


def with_level(comparison, **change):
    level = comparison.levels[0].model_copy(update=change)
    return comparison.model_copy(update={"levels": (level,)})


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        (0.0, 0.0, False),
        (0.0, MORE_FAILURES / 2, False),
        (0.0, 2 * MORE_FAILURES, True),
        (0.5, 0.51, True),
        (0.5, 0.1, False),
    ],
)
def test_a_small_rise_of_the_failures_is_no_regression(comparison, before, after, more):
    given = with_level(comparison, ratios=(), failed=(before, after))
    assert given.levels[0].fails_more is more
    assert bool(given.regressions) is more


def test_each_slower_quantity_is_a_line(comparison):
    ratios = (
        ratio(RatioVerdict.SLOWER),
        ratio(RatioVerdict.FASTER, Quantity.P50),
        ratio(RatioVerdict.NO_DIFFERENCE, Quantity.TEXTS_PER_S),
    )
    given = with_level(comparison, ratios=ratios, failed=(0.0, 0.25))
    name = given.levels[0].name
    assert given.regressions == (
        f"{name}: p99 1.25 times the baseline",
        f"{name}: 25.0% of requests fail, baseline 0.0%",
    )


def test_equal_targets_are_told_apart(comparison):
    url = comparison.before.target
    assert comparison.names == (f"{url} before", f"{url} after")
    after = comparison.after.model_copy(update={"target": "http://other"})
    assert comparison.model_copy(update={"after": after}).names == (url, "http://other")
