import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipework.errors import MissingDependencyError
from pipework.serve.config import LogSettings, ServeSettings
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import RequestContext
from tests.serve.servers import MemoryServer

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["goal"]}


class ObservedApp:
    """An app with a real model, and the requests that its observers received."""

    def __init__(self, models: Models, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "pipework.serve.observability.logs")
        self._caplog = caplog
        self.models = models
        settings = ServeSettings(logs=LogSettings(requests=True))
        self.request = MemoryServer(models, settings=settings).request

    @property
    def requests(self) -> list[RequestContext]:
        return [record.request for record in self._caplog.records if hasattr(record, "finished")]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def models(run: Path) -> Iterator[Models]:
    with ExitStack() as stack:
        yield stack.enter_context(Models([open_predictor(run, name="topics", version="7")]))


@pytest.fixture
def app(models: Models, caplog: pytest.LogCaptureFixture) -> ObservedApp:
    return ObservedApp(models, caplog)


@pytest.mark.parametrize(
    ("path", "body", "endpoint"),
    [
        ("/v1/predict", {"texts": ["goal"]}, "v1"),
        ("/v2/models/topics/infer", {"inputs": [TENSOR]}, "v2"),
        ("/v2/models/topics/versions/7/infer", {"inputs": [TENSOR]}, "v2"),
    ],
)
def test_a_request_is_observed_with_model_texts_and_timings(
    app: ObservedApp, path: str, body: object, endpoint: str
) -> None:
    answer = app.request("POST", path, json=body, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    (request,) = app.requests
    assert (request.id, request.endpoint, request.model, request.version) == (
        "mine",
        endpoint,
        "topics",
        "7",
    )
    assert (request.texts, request.status) == (1, "200")
    assert request.timings is not None
    total_s = sum(request.timings.by_stage().values())
    assert 0 < total_s <= request.elapsed_s
    assert answer.headers["server-timing"] == request.timings.server_timing()


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
def test_an_error_is_observed_without_unknown_model_names(
    app: ObservedApp, path: str, content: bytes, status: str, model: str
) -> None:
    answer = app.request("POST", path, content=content)
    (request,) = app.requests
    assert (str(answer.status_code), answer.headers["x-request-id"]) == (status, request.id)
    assert (request.status, request.model, request.timings) == (status, model, None)


def test_other_requests_have_an_id_but_are_not_observed(app: ObservedApp) -> None:
    for path in ("/", "/healthz", "/metrics", "/v1/status", "/v2/models/topics", "/nowhere"):
        assert app.request("GET", path).headers["x-request-id"]
    assert app.requests == []


def test_a_request_to_a_closed_model_is_counted_once(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Models([open_predictor(run, name="topics")]) as models:
        app = ObservedApp(models, caplog)
        (version,) = models.serving()
        version.close()
        assert app.request("POST", "/v1/predict", json={"texts": ["goal"]}).status_code == 503
        assert version.scheduler.load.refused["not_ready"] == 1


def test_traces_without_opentelemetry_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pipework.serve.observability.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    models = SimpleNamespace(serving=list)
    with pytest.raises(MissingDependencyError, match=r"traces = true, but opentelemetry") as caught:
        Observers(models, ServeSettings(traces=True))  # type: ignore[arg-type]
    assert caught.value.hint == "pip install 'pipework[traces]'"
