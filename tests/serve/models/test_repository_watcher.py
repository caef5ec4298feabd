"""Versions are loaded and unloaded while requests are served."""

import asyncio
import shutil
import threading
import time
from functools import partial

import pytest

from pipework.data.examples import Example
from pipework.errors import NotReadyError, RunFolderError, UnknownModelError
from pipework.machine import cpu_limit
from pipework.serve.config import RepositorySettings, ServeSettings
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.models.open_models import open_models, open_predictor
from pipework.serve.models.registry import Change, Models
from pipework.serve.models.repository_watcher import LoadError, RepositoryWatcher
from pipework.text.encoding import TextEncoder
from tests.serve.test_run import wait_for

ALL = "version_policy { all { } }"


def opened(shelf, *, poll_s=0.0, control=True):
    settings = RepositorySettings(control=control, poll_s=poll_s)
    return open_models(shelf.folder, ServeSettings(models=settings))


@pytest.fixture
def models(shelf):
    """A model with one version; new versions are loaded on request only."""
    shelf.add(1)
    with opened(shelf) as models:
        yield models


def load(models, name="topics"):
    asyncio.run(models.request(Change.LOAD, name))


def states(models):
    return [(one.name, one.version, str(one.state), one.reason) for one in models.index()]


async def label(models, text="rain", version=""):
    """Return the version that served the request, and its label."""
    with models.lease("topics", version) as one:
        found = await one.predict([Example(text=text)])
        return one.version, found[0].label


def test_names_and_versions_are_those_of_the_folders(shelf):
    shelf.add(1, policy=ALL)
    shelf.add(2)
    shelf.add(7, name="other")
    with opened(shelf) as models:
        assert models.leases.names == ["other", "topics"]
        assert [one.version for one in models.leases.versions("topics")] == ["1", "2"]
        assert asyncio.run(label(models)) == ("2", "weather-2")
        assert asyncio.run(label(models, version="1")) == ("1", "weather")
        with models.lease("other") as one:
            assert (one.name, one.version) == ("other", "7")
        assert [entry.version for entry in models.index()] == ["7", "1", "2"]


def test_a_request_with_a_lease_on_the_old_version_is_answered_after_the_switch(shelf, models):
    with models.lease("topics") as old:
        shelf.add(2)
        load(models)
        assert asyncio.run(label(models)) == ("2", "weather-2")
        assert ("topics", "1", "UNLOADING", "") in states(models)
        (answer,) = asyncio.run(old.predict([Example(text="rain")]))
        assert answer.label == "weather"
    wait_for(lambda: not old.alive)


def test_a_version_that_fails_parity_keeps_the_old_one_serving(shelf, models):
    shelf.add(2, wrong=True)
    with pytest.raises(LoadError, match="version 2: predictions of engine onnx differ") as caught:
        load(models)
    assert caught.value.http_status == 400
    assert asyncio.run(label(models)) == ("1", "weather")
    ready, failed = states(models)
    assert ready == ("topics", "1", "READY", "")
    assert failed[:3] == ("topics", "2", "UNAVAILABLE")
    assert "differ from the checkpoint" in failed[3]
    models.check_ready()
    with pytest.raises(NotReadyError, match="model topics 2 is not served: predictions of"):
        asyncio.run(label(models, version="2"))
    shelf.mend(2)
    load(models)
    assert asyncio.run(label(models)) == ("2", "weather-2")


def test_a_version_that_fails_warm_up_is_closed(shelf, models, monkeypatch):
    closed = []
    close = OnnxRuntimeEngine.close
    monkeypatch.setattr(OnnxRuntimeEngine, "close", lambda one: (closed.append(1), close(one)))
    monkeypatch.setattr(TextEncoder, "encode", lambda *_: 1 / 0)
    shelf.add(2)
    with pytest.raises(LoadError, match="ZeroDivisionError: division by zero"):
        load(models)
    assert len(closed) == min(2, cpu_limit())


def test_polling_loads_new_versions_and_unloads_removed_ones(shelf):
    shelf.add(1)
    with opened(shelf, poll_s=0.02, control=False) as models:
        shelf.add(2)
        wait_for(lambda: asyncio.run(label(models)) == ("2", "weather-2"))
        shelf.add(1, name="other")
        wait_for(lambda: models.leases.names == ["topics", "other"])
        shutil.rmtree(shelf.folder / "topics" / "2")
        wait_for(lambda: asyncio.run(label(models)) == ("1", "weather"))
        shutil.rmtree(shelf.folder / "other")
        wait_for(lambda: models.leases.names == ["topics"])
        shelf.configure(ALL)
        shelf.add(3)
        wait_for(lambda: len(models.leases.versions("topics")) == 2)


def test_a_failure_is_logged_once_and_retried_when_the_files_change(shelf, caplog):
    shelf.add(1)
    with opened(shelf, poll_s=0.02) as models:
        shelf.add(2, wrong=True)
        wait_for(lambda: len(states(models)) == 2 and "differ from" in states(models)[1][3])
        time.sleep(0.2)
        lines = [record.getMessage() for record in caplog.records]
        assert len([line for line in lines if "topics version 2 is not served" in line]) == 1
        shelf.mend(2)
        wait_for(lambda: states(models) == [("topics", "2", "READY", "")])


def test_a_version_that_needs_another_server_is_retried_at_each_poll(shelf, caplog):
    shelf.add(1)
    asked = []

    def open_it(found):
        asked.append(found.version)
        if found.version == "2" and len(asked) < 6:
            message = "Triton does not answer"
            raise NotReadyError(message)
        return open_predictor(found.folder, name=found.name, version=found.version)

    with Models((), RepositoryWatcher(shelf.folder, open_it, poll_s=0.02)) as models:
        shelf.add(2)
        wait_for(lambda: asyncio.run(label(models)) == ("2", "weather-2"))
    assert asked == ["1", *["2"] * 5]
    assert caplog.text.count("Triton does not answer") == 1


def test_a_repository_that_cannot_be_read_keeps_its_models(shelf, caplog):
    shelf.add(1)
    with opened(shelf, poll_s=0.02) as models:
        shelf.folder.rename(shelf.folder.with_name("away"))
        wait_for(lambda: "the served models stay unchanged" in caplog.text)
        assert asyncio.run(label(models)) == ("1", "weather")
        shelf.folder.with_name("away").rename(shelf.folder)
        shelf.add(2)
        wait_for(lambda: asyncio.run(label(models)) == ("2", "weather-2"))


def test_a_config_that_becomes_invalid_keeps_the_version_serving(shelf, models):
    (shelf.folder / "topics" / "config.pbtxt").write_text("{")
    with pytest.raises(LoadError, match="is not a model config"):
        load(models)
    assert asyncio.run(label(models)) == ("1", "weather")
    (broken, ready) = states(models)
    assert broken[:3] == ("topics", "", "UNAVAILABLE")
    assert ready == ("topics", "1", "READY", "")


def test_changed_files_of_a_version_are_loaded_only_if_valid(shelf, models):
    (before,) = models.serving()
    tokenizer = shelf.folder / "topics" / "1" / "tokenizer.json"
    good = tokenizer.read_bytes()
    tokenizer.write_bytes(good + b" ")
    with pytest.raises(LoadError, match=r"tokenizer\.json changed"):
        load(models)
    assert models.serving() == [before]
    ((*_, state, reason),) = states(models)
    assert (state, "tokenizer.json changed" in reason) == ("READY", True)
    tokenizer.write_bytes(good)
    load(models)
    assert models.serving() != [before]
    assert asyncio.run(label(models)) == ("1", "weather")


def test_an_unloaded_model_is_not_served_until_it_is_loaded(shelf):
    shelf.add(1)
    shelf.add(1, name="other")
    with opened(shelf, poll_s=0.02) as models:
        (old,) = models.leases.versions("topics")
        asyncio.run(models.request(Change.UNLOAD, "topics"))
        assert not old.alive
        shelf.add(2)
        wait_for(lambda: [one[1] for one in states(models)] == ["1", "2"])
        time.sleep(0.2)  # several polls
        assert states(models)[1] == ("topics", "2", "UNAVAILABLE", "unloaded")
        with pytest.raises(
            UnknownModelError, match="unknown model 'topics'; known models: 'other'"
        ):
            asyncio.run(label(models))
        models.check_ready()
        load(models)
        assert asyncio.run(label(models)) == ("2", "weather-2")


def test_a_server_whose_models_are_all_unloaded_is_alive_and_not_ready(models):
    asyncio.run(models.request(Change.UNLOAD, "topics"))
    models.check_alive()
    with pytest.raises(NotReadyError, match="no model is served"):
        models.check_ready()
    load(models)
    models.check_ready()


def test_unloading_waits_for_leases_on_the_model(models):
    unload = partial(models.apply, Change.UNLOAD, "topics")
    unloading = threading.Thread(target=unload)
    with models.lease("topics") as one:
        unloading.start()
        wait_for(lambda: states(models)[0][2] == "UNAVAILABLE" or not models.leases.names)
        assert unloading.is_alive()
        (answer,) = asyncio.run(one.predict([Example(text="goal")]))
        assert answer.label == "sport"
    unloading.join(20)
    assert not one.alive


def test_requests_are_served_while_a_version_is_opened(shelf, models, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    infer = OnnxRuntimeEngine.infer

    def slow(engine, encodings):
        if threading.current_thread().name.startswith("asyncio"):  # the proof
            begun.set()
            assert go.wait(20)
        return infer(engine, encodings)

    monkeypatch.setattr(OnnxRuntimeEngine, "infer", slow)
    shelf.add(2)

    async def ask():
        loading = asyncio.create_task(models.request(Change.LOAD, "topics"))
        await asyncio.to_thread(begun.wait, 20)
        assert await label(models) == ("1", "weather")
        assert ("topics", "2", "LOADING", "") in states(models)
        models.check_ready()
        go.set()
        await loading
        assert await label(models) == ("2", "weather-2")

    asyncio.run(ask())


@pytest.mark.parametrize("name", ["../topics", "..", "topics/1", "/etc", "", "topics\0"])
def test_model_names_cannot_leave_the_repository(models, name):
    for change in Change:
        with pytest.raises(UnknownModelError, match="the repository has no model"):
            asyncio.run(models.request(change, name))


def test_versions_cannot_leave_the_repository(models):
    for version in ("../1", "./1", "01", "1/"):
        with pytest.raises(UnknownModelError, match="unknown version"):
            asyncio.run(label(models, version=version))


def test_a_model_that_needs_a_tritonserver_is_reported(shelf, models):
    key = 'parameters { key: "tensor_model" value { string_value: "asked-engine" } }'
    shelf.add(1, name="asked", policy=key)
    with pytest.raises(LoadError, match="asked-engine, a model of a tritonserver: serve it"):
        load(models, "asked")
    assert models.leases.names == ["topics"]


def test_a_bad_model_does_not_stop_the_others_from_being_served(shelf):
    shelf.add(1)
    shelf.add(1, name="bad", wrong=True)
    shelf.configure("version_policy {", "worse")
    with opened(shelf) as models:
        assert models.leases.names == ["topics"]
        assert [(name, state) for name, _, state, _ in states(models)] == [
            ("bad", "UNAVAILABLE"),
            ("topics", "READY"),
            ("worse", "UNAVAILABLE"),
        ]
        models.check_ready()
        with pytest.raises(NotReadyError, match="model bad 1 is not served: predictions of"):
            models.check_model("bad")


def test_a_repository_without_servable_models_is_an_error_in_one_line(shelf):
    shelf.add(1, wrong=True)
    shelf.configure("version_policy {", "worse")
    with pytest.raises(RunFolderError, match="can be served: ") as caught:
        opened(shelf)
    said = str(caught.value)
    assert "topics 1: predictions of engine onnx differ" in said
    assert "worse: " in said
    assert "\n" not in said


def test_a_version_without_engines_is_reopened_by_the_next_poll(shelf):
    shelf.add(1)
    with opened(shelf, poll_s=0.5) as models:
        (one,) = models.serving()
        one.close()
        models.check_alive()
        wait_for(lambda: models.serving() != [one])
        models.check_ready()
        assert asyncio.run(label(models)) == ("1", "weather")
        (shelf.folder / "topics" / "1" / "tokenizer.json").unlink()
        wait_for(lambda: "is missing" in states(models)[0][3])
        (one,) = models.serving()
        one.close()
        with pytest.raises(NotReadyError, match="has stopped"):
            models.check_alive()


def test_close_stops_polling_and_closes_all_versions(shelf):
    shelf.add(1)
    models = opened(shelf, poll_s=0.02)
    (one,) = models.serving()
    lease = models.lease("topics")
    lease.__enter__()
    shelf.add(2)
    wait_for(lambda: one not in models.serving())
    models.close()
    models.close()
    assert not one.alive
    with pytest.raises(NotReadyError, match="the server is stopping"):
        load(models)
    assert "repository" not in {thread.name for thread in threading.enumerate()}
    lease.__exit__(None, None, None)
