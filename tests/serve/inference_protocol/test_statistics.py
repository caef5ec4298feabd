"""Statistics of model versions, from the counters of the server."""

from types import SimpleNamespace

import pytest

from pipework.errors import UnknownModelError
from pipework.serve.inference_protocol.metadata import Duration, chosen_versions, statistics
from pipework.serve.models.registry import Models
from pipework.serve.request.context import StageTimings
from pipework.serve.request.statistics import EngineLoad, Statistics


def version(name="topics", number="1", counters=None):
    return SimpleNamespace(
        name=name,
        version=number,
        load=EngineLoad(batches=7, cache_hits=5, cache_misses=2),
        scheduler=SimpleNamespace(statistics=counters or Statistics()),
        close=lambda: None,
    )


def test_seconds_become_whole_nanoseconds():
    assert Duration.of(3, 1.5e-6) == Duration(count=3, ns=1500)
    assert Duration() == Duration(count=0, ns=0)


def test_each_stage_has_the_count_and_time_of_successful_requests():
    counters = Statistics()
    counters.record_success(4, StageTimings(tokenize_s=1, queue_s=2, infer_s=3, decode_s=4))
    counters.record_success(1, StageTimings(infer_s=0.5))
    counters.record_failure(6)
    (found,) = statistics([version(counters=counters)]).model_stats
    assert (found.inference_count, found.execution_count) == (5, 7)
    requests = found.inference_stats
    seconds = {
        name: (part["count"], part["ns"] / 1e9)
        for name, part in requests.model_dump().items()
        if part["count"]
    }
    assert seconds == {
        "success": (2, 10.5),
        "fail": (1, 6),
        "compute_input": (2, 1),
        "queue": (2, 2),
        "compute_infer": (2, 3.5),
        "compute_output": (2, 4),
        "cache_hit": (5, 0),
        "cache_miss": (2, 0),
    }


def test_the_last_response_is_in_milliseconds_since_1970(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.25)
    counters = Statistics()
    assert statistics([version(counters=counters)]).model_stats[0].last_inference == 0
    counters.record_success(1, StageTimings())
    found = statistics([version(counters=counters)]).model_stats[0]
    assert found.last_inference == 1_700_000_000_250


def test_versions_are_chosen_by_model_and_version():
    given = [version("topics", "1"), version("topics", "2"), version("tone", "1")]
    with Models(given) as models:
        for name, number, expected in (
            ("topics", "1", given[:1]),
            ("topics", "", given[:2]),
            ("tone", "", given[2:]),
        ):
            assert chosen_versions(models, name, number) == expected
        every = {(one.name, one.version) for one in chosen_versions(models, "", "")}
        assert every == {(one.name, one.version) for one in given}


@pytest.mark.parametrize(("name", "number"), [("other", ""), ("topics", "9"), ("", "1")])
def test_an_unknown_version_is_reported(name, number):
    with (
        Models([version("topics", "2"), version("tone", "2")]) as models,
        pytest.raises(UnknownModelError),
    ):
        chosen_versions(models, name, number)
