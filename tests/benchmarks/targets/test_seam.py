import pytest

from pipework.benchmarks.targets.seam import StageTimes


def test_the_mean_covers_the_requests_since_the_first_reading():
    before = StageTimes(requests=10, seconds={"queue": 1.0, "infer": 2.0})
    after = StageTimes(requests=14, seconds={"queue": 1.2, "infer": 2.0, "decode": 0.4})
    assert after.mean_ms_since(before) == {
        "queue": pytest.approx(50),
        "infer": 0,
        "decode": pytest.approx(100),
    }


def test_without_new_requests_there_is_no_mean():
    times = StageTimes(requests=10, seconds={"queue": 1.0})
    assert times.mean_ms_since(times) == {}
    assert StageTimes().mean_ms_since(StageTimes()) == {}


def test_a_server_that_reports_nothing_has_no_stages():
    assert StageTimes(requests=5).mean_ms_since(StageTimes()) == {}
