"""Properties of a stored load level."""

import pytest
from pydantic import ValidationError

from pipework.benchmarks.results_schema.level import Level, cost_per_million


def level(**change):
    fields = {
        "concurrency": 4,
        "texts_per_request": 8,
        "duration_s": 5.0,
        "requests": 100,
        "texts": 800,
        "texts_per_s": 160.0,
        "requests_per_s": 20.0,
        "latency_ms": None,
        "errors": {},
    }
    return Level(**fields | change)


@pytest.mark.parametrize("change", [{"rate": 10.0}, {"concurrency": None}])
def test_a_level_is_either_a_closed_or_an_open_loop(change):
    with pytest.raises(ValidationError, match="expected either concurrency or rate"):
        level(**change)


def test_the_load_is_the_number_of_clients_or_the_rate():
    assert level().load == 4
    assert level(concurrency=None, rate=12.5).load == 12.5


def test_the_cost_is_that_of_a_million_texts():
    assert cost_per_million(3.6, 1000.0) == 1.0
    assert cost_per_million(1.0, 160.0) == pytest.approx(1e6 / 160 / 3600, abs=1e-4)


def test_without_a_price_or_successful_requests_there_is_no_cost():
    assert cost_per_million(1.0, 0.0) is None
    assert cost_per_million(None, 160.0) is None
