import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from pipework.errors import MissingDependencyError
from pipework.serve.app import build_app
from pipework.serve.config import LogSettings, ServeSettings
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Watch
from pipework.serve.request.context import Observed
from pipework.serve.scheduling.predictor import Predictor

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["goal"]}


class Watched:
    """An app of a real model, and what its watch saw."""

    def __init__(self, models: Models, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "pipework.serve.observability.logs")
        self._caplog = caplog
        self.models = models
        settings = ServeSettings(logs=LogSettings(requests=True))
        self._app = build_app(models, settings, watch=Watch(models, settings))

    def ask(self, method: str, path: str, **options: object) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                return await client.request(method, path, **options)  # type: ignore[arg-type]

        return asyncio.run(send())

    @property
    def seen(self) -> list[Observed]:
        return [one.request for one in self._caplog.records if hasattr(one, "finished")]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def models(run: Path) -> Iterator[Models]:
    with ExitStack() as stack:
        yield stack.enter_context(Models([Predictor(run, name="topics", version="7")]))


@pytest.fixture
def watched(models: Models, caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(models, caplog)


@pytest.mark.parametrize(
    ("path", "body", "door"),
    [
        ("/v1/predict", {"texts": ["goal"]}, "v1"),
        ("/v2/models/topics/infer", {"inputs": [TENSOR]}, "v2"),
        ("/v2/models/topics/versions/7/infer", {"inputs": [TENSOR]}, "v2"),
    ],
)
def test_an_answer_is_seen_with_its_model_texts_and_stages(
    watched: Watched, path: str, body: object, door: str
) -> None:
    answer = watched.ask("POST", path, json=body, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    (seen,) = watched.seen
    assert (seen.id, seen.door, seen.model, seen.version) == ("mine", door, "topics", "7")
    assert (seen.texts, seen.status) == (1, "200")
    assert seen.stages is not None
    spent_s = sum(seen.stages.named().values())
    assert 0 < spent_s <= seen.elapsed_s
    assert answer.headers["server-timing"] == seen.stages.header()


@pytest.mark.parametrize(
    ("path", "content", "status", "model"),
    [
        ("/v1/predict", b"rain", "400", "topics"),
        ("/v1/predict", b'{"texts": ["a"], "model": "other"}', "404", ""),
        ("/v1/predict", b'{"inputs": [{"text": "a", "text_pair": "b"}]}', "422", "topics"),
        ("/v2/models/topics/infer", b"{}", "400", "topics"),
        ("/v2/models/made-up/infer", b"{}", "404", ""),
    ],
)
def test_an_error_is_seen_and_a_made_up_name_is_not_kept(
    watched: Watched, path: str, content: bytes, status: str, model: str
) -> None:
    answer = watched.ask("POST", path, content=content)
    (seen,) = watched.seen
    assert (str(answer.status_code), answer.headers["x-request-id"]) == (status, seen.id)
    assert (seen.status, seen.model, seen.stages) == (status, model, None)


def test_a_bug_is_answered_with_the_id_too(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched.models, "lease", None)
    answer = watched.ask("POST", "/v1/predict", json={"texts": ["a"]})
    (seen,) = watched.seen
    assert answer.status_code == 500
    assert (answer.headers["x-request-id"], seen.status) == (seen.id, "500")


def test_what_asks_no_model_has_an_id_and_is_not_counted(watched: Watched) -> None:
    for path in ("/", "/healthz", "/metrics", "/v1/status", "/v2/models/topics", "/nowhere"):
        assert watched.ask("GET", path).headers["x-request-id"]
    assert watched.seen == []


def test_the_status_tells_models_and_the_last_seconds(watched: Watched) -> None:
    watched.ask("POST", "/v1/predict", json={"texts": ["goal", "rain"]})
    status = watched.ask("GET", "/v1/status").json()
    ((version,),) = [model["versions"] for model in status["models"]]
    assert (version["version"], version["engine"], version["precision"]) == ("7", "onnx", "fp32")
    assert (version["inputs"], version["kind"], version["classes"]) == (
        ["text"],
        "single_label",
        3,
    )
    assert version["totals"]["texts"] >= 2
    assert status["recent"]["texts_per_s"] == 2 / status["recent"]["window_s"]
    assert 0 < status["recent"]["p50_ms"] <= status["recent"]["p99_ms"]


def test_the_status_tells_the_thresholds_of_several_labels(
    multi_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Models([Predictor(multi_run)]) as models:
        status = Watched(models, caplog).ask("GET", "/v1/status").json()
    thresholds = status["models"][0]["versions"][0]["thresholds"]
    assert thresholds == {"weather": 0.75, "sport": 0.75, "money": 0.25}


def test_a_request_that_comes_too_late_is_counted_once(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Models([Predictor(run, name="topics")]) as models:
        watched = Watched(models, caplog)
        (version,) = models.serving()
        version.close()
        assert watched.ask("POST", "/v1/predict", json={"texts": ["goal"]}).status_code == 503
        assert version.load.refused["not_ready"] == 1


def test_traces_without_their_package_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pipework.serve.observability.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    models = SimpleNamespace(serving=list)
    with pytest.raises(MissingDependencyError, match=r"traces = true, and opentelemetry") as caught:
        Watch(models, ServeSettings(traces=True))  # type: ignore[arg-type]
    assert caught.value.hint == "pip install 'pipework[traces]'"
