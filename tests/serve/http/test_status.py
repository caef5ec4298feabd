"""The status endpoint, with the registry and with versions whose counters are known."""

from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pipework import __version__
from pipework.run_folder.manifest import TrainingReadOptions, read_manifest
from pipework.serve.http.status import ServerStatus, build_status_router, server_status
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.observability.recent_latency import RecentLatency
from pipework.serve.observability.summed_metrics import WorkerCounts
from pipework.serve.request.context import RequestContext, StageTimings
from pipework.serve.request.statistics import EngineLoad, Statistics
from pipework.tasks.registry import task_type
from pipework.wire.schemas import STATUS_PATH

LABELS = ("a", "b")


class Version:
    """The attributes of a model version that the status contains."""

    engine, inputs, classes = "onnx-int8", ("text",), 2
    alive = True

    def __init__(self, name, version, kind="single_label", thresholds=()):
        self.name, self.version = name, version
        self.record = SimpleNamespace(precision="int8")
        self.manifest = SimpleNamespace(
            task=task_type(kind)(labels=LABELS, metric="accuracy", thresholds=thresholds),
            input=SimpleNamespace(marked=False),
            data=SimpleNamespace(splits={}, reading=TrainingReadOptions.of_inputs(self.inputs)),
        )
        self.load = EngineLoad(waiting_requests=3, crashes=2, refused={"queue_full": 4})
        self.statistics = Statistics()
        self.scheduler = SimpleNamespace(ready=True, fault="", statistics=self.statistics)

    def close(self):
        pass


def status(*versions, recent=None, stopping=False):
    with Models(versions) as models:
        if stopping:
            models.stopping.set()
        app = FastAPI()
        observers = Observers(models)
        observers.recent = recent or observers.recent
        app.include_router(build_status_router(models, observers))
        answer = TestClient(app).get(STATUS_PATH)
    assert answer.status_code == 200
    return ServerStatus.model_validate(answer.json())


def test_versions_are_listed_by_model_with_the_newest_last():
    found = status(Version("topics", "1"), Version("tone", "7"), Version("topics", "2"))
    assert {model.name: [one.version for one in model.versions] for model in found.models} == {
        "topics": ["1", "2"],
        "tone": ["7"],
    }
    assert (found.server, found.stopping) == (__version__, False)


def test_a_version_has_its_load_and_totals():
    version = Version("topics", "1")
    version.statistics.record_success(5, StageTimings(infer_s=0.1))
    version.statistics.record_failure(0.1)
    (found,) = status(version).models[0].versions
    assert (found.engine, found.precision, found.ready) == ("onnx-int8", "int8", True)
    assert (found.load.waiting_requests, found.load.deaths) == (3, 2)
    assert found.load.refused == {"queue_full": 4}
    assert (found.totals.answered, found.totals.failed, found.totals.texts) == (1, 1, 5)


@pytest.mark.parametrize(
    ("kind", "thresholds", "expected"),
    [
        ("single_label", (), None),
        ("multi_label", (0.25, 0.75), {"a": 0.25, "b": 0.75}),
        ("multi_label", (), {"a": 0.5, "b": 0.5}),
    ],
)
def test_only_multi_label_models_have_thresholds(kind, thresholds, expected):
    (found,) = status(Version("topics", "1", kind, thresholds)).models[0].versions
    assert found.thresholds == expected


def test_recent_latencies_are_in_milliseconds():
    recent = RecentLatency(window_s=60)
    for elapsed_s in (0.01, 0.02, 0.03):
        recent.finished(
            RequestContext(endpoint="v1", id="a", status="200", texts=2, elapsed_s=elapsed_s)
        )
    found = status(recent=recent).recent
    assert found.p50_ms == pytest.approx(20)
    assert found.texts_per_s == pytest.approx(6 / 60)


def test_without_requests_there_is_no_latency():
    found = status()
    assert (found.recent.p50_ms, found.recent.p99_ms, found.models) == (None, None, [])


def test_the_status_of_a_worker_has_the_counts_of_the_others():
    version = Version("topics", "1")
    version.statistics.record_success(5, StageTimings(infer_s=0.1))
    with Models([version]) as models:
        observers = Observers(models)
        other = server_status(models, RecentLatency()).model_dump(mode="json")
        observers.others = lambda: [WorkerCounts(status=other), WorkerCounts()]
        app = FastAPI()
        app.include_router(build_status_router(models, observers))
        found = ServerStatus.model_validate(TestClient(app).get(STATUS_PATH).json())
    (added,) = found.models[0].versions
    assert (added.totals.answered, added.totals.texts) == (2, 10)
    assert (added.load.waiting_requests, added.load.refused) == (6, {"queue_full": 8})


def test_a_stopping_server_is_shown():
    assert status(Version("topics", "1"), stopping=True).stopping


def test_a_server_has_the_endpoint(server):
    found = ServerStatus.model_validate(httpx.get(f"{server.url}{STATUS_PATH}").json())
    (version,) = found.models[0].versions
    assert (version.engine, version.classes, version.inputs) == ("onnx", 3, ["text"])
    assert (version.reading.text, version.reading.header) == (0, False)


def test_the_status_has_the_columns_of_the_training_data_and_no_path(exported_run):
    with Models([open_predictor(exported_run)]) as models:
        app = FastAPI()
        app.include_router(build_status_router(models, Observers(models)))
        answer = TestClient(app).get(STATUS_PATH)
    data = read_manifest(exported_run).data
    (version,) = ServerStatus.model_validate(answer.json()).models[0].versions
    assert version.reading.model_dump() == {**data.reading.model_dump(), "suffix": ".tsv"}
    folders = {str(Path(split.path).parent) for split in data.splits.values()}
    assert not any(folder in answer.text for folder in (*folders, str(exported_run)))
