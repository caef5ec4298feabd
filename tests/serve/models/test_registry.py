"""The registry with a fixed list of models, without a repository."""

import asyncio
import time

import pytest

from pipework.data.examples import Example
from pipework.errors import NotReadyError, UnknownModelError
from pipework.serve.config import RepositorySettings
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Change, ControlError, Entry, Models, State
from pipework.serve.models.repository import Policy
from pipework.serve.scheduling.in_flight import RunningBatch


@pytest.fixture
def models(run):
    given = [open_predictor(run, name="topics", version=version) for version in ("9", "10")]
    with Models(given, settings=RepositorySettings(control=True)) as models:
        yield models


def test_versions_are_leased_by_name_and_the_last_given_is_the_newest(models):
    assert models.leases.names == ["topics"]
    assert [one.version for one in models.leases.versions("topics")] == ["9", "10"]
    assert models.policy("topics") == Policy(latest=1)
    with models.lease() as one:
        assert one.version == "10"
        (answer,) = asyncio.run(one.predict([Example(text="goal")]))
        assert answer.label == "sport"
    with pytest.raises(UnknownModelError, match="unknown version '1' of model 'topics'"):
        models.check_model("topics", "1")


def test_the_index_is_in_the_order_of_the_versions(models):
    ready = [Entry(name="topics", version=one, state=State.READY) for one in ("9", "10")]
    assert models.index() == ready


def test_fixed_models_are_neither_loaded_nor_unloaded(models):
    for change in Change:
        with pytest.raises(ControlError, match="serves one run folder"):
            asyncio.run(models.request(change, "topics"))


def test_a_version_without_engines_is_neither_ready_nor_alive(models):
    _, newest = models.serving()
    newest.close()  # its engines are gone
    assert [one.state for one in models.index()] == [State.READY, State.UNAVAILABLE]
    models.check_model("topics", "9")
    for check in (models.check_alive, models.check_ready, lambda: models.check_model("topics")):
        with pytest.raises(NotReadyError, match="the engine of topics 10 has stopped"):
            check()


def test_a_server_with_a_stuck_engine_of_a_replaced_version_is_not_ready(models, monkeypatch):
    replaced, newest = models.serving()
    batch = RunningBatch(started_s=time.monotonic() - 9, limit_s=1.0)
    with models.lease("topics", "9"):
        models.leases.put("topics", [newest])
        models.check_ready()
        monkeypatch.setitem(replaced.scheduler._running_batches, 0, batch)  # noqa: SLF001
        with pytest.raises(NotReadyError, match="the engine of topics 9 is stuck"):
            models.check_ready()
        models.check_model("topics")
    models.leases.wait_drained("topics")
    models.check_ready()


def test_a_stopping_server_is_alive_and_not_ready(models):
    models.check_ready()
    models.stopping.set()
    models.check_alive()
    for check in (models.check_ready, lambda: models.check_model("topics")):
        with pytest.raises(NotReadyError, match="the server is stopping"):
            check()
