"""Quantiles are those of any table, whatever the number of degrees of freedom."""

from math import inf

import pytest

from pipework.benchmarks.stats.student_t import quantile, tail


@pytest.mark.parametrize(
    ("share", "freedom", "table"),
    [
        (0.975, 1, 12.706),
        (0.975, 4, 2.7764),
        (0.975, 10, 2.2281),
        (0.975, 30, 2.0423),
        (0.975, inf, 1.95996),
        (0.9995, 2, 31.599),  # where expansions in 1 / freedom are far too short
        (0.9995, 5, 6.8688),
        (0.9995, 120, 3.3735),
        (0.75, 3, 0.7649),
    ],
)
def test_the_quantile_is_students(share, freedom, table):
    assert quantile(share, freedom) == pytest.approx(table, rel=1e-4)


@pytest.mark.parametrize("freedom", [1.3, 2.7, 10.5, 333.3, 1e6])
@pytest.mark.parametrize("share", [0.6, 0.95, 0.99999])
def test_the_rest_is_beyond_the_quantile_also_for_parts_of_a_degree(freedom, share):
    assert tail(quantile(share, freedom), freedom) == pytest.approx(1 - share, rel=1e-6)


def test_half_is_beyond_nothing():
    assert tail(0.0, 3) == 0.5
