import re
from dataclasses import asdict

import pytest

from pipework.serve.request.timings import StageTimings, TimedResult

TIMINGS = StageTimings(tokenize_s=0.001, queue_s=0.02, infer_s=0.3, decode_s=0.0000004)


def test_each_stage_has_its_seconds():
    expected = {name.removesuffix("_s"): seconds for name, seconds in asdict(TIMINGS).items()}
    assert TIMINGS.by_stage() == expected
    assert len(expected) == 4


def test_a_request_that_was_not_computed_took_no_time():
    assert set(StageTimings().by_stage().values()) == {0.0}


def test_the_header_has_the_stages_in_milliseconds():
    header = TIMINGS.server_timing()
    assert header == "tokenize;dur=1.000, queue;dur=20.000, infer;dur=300.000, decode;dur=0.000"
    found = {name: float(ms) / 1e3 for name, ms in re.findall(r"(\w+);dur=([\d.]+)", header)}
    assert found == pytest.approx(TIMINGS.by_stage(), abs=1e-6)


def test_a_result_is_kept_with_its_timings():
    result = TimedResult(value=["sport"], timings=TIMINGS)
    assert (result.value, result.timings) == (["sport"], TIMINGS)
