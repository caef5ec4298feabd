import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from pipework.data.examples import Example
from pipework.errors import InputError, NotReadyError, TooBusyError
from pipework.serve.config import LimitSettings
from pipework.serve.models.registry import Models
from pipework.serve.request.context import RequestOptions, StageTimings, set_timings
from pipework.serve.request.statistics import EngineLoad, Statistics
from pipework.tasks.predictions import Prediction, SingleLabel
from pipework.wire.text_tensors import InputTexts, OutputTensors
from tests.serve.servers import MemoryServer

STAGES = StageTimings(tokenize_s=0.001, queue_s=0.002, infer_s=0.003, decode_s=0.004)


class FakeModel:
    """Predicts sport for every text, or raises `error`."""

    name = "fake"
    version = "1"
    engine = "onnx"
    alive = True
    record = SimpleNamespace(precision="fp32")
    inputs = ("text",)
    classes = 2
    load = EngineLoad()

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.examples: list[list[Example]] = []
        self.terms: list[RequestOptions] = []
        self.scheduler = SimpleNamespace(
            ready=True,
            fault="",
            oldest_batch=None,
            statistics=Statistics(),
        )

    def check_room(self, _: RequestOptions) -> None:
        if isinstance(self.error, TooBusyError):
            raise self.error

    async def predict(
        self, examples: list[Example], top_k: int | None = None, terms: RequestOptions | None = None
    ) -> list[Prediction]:
        self.examples.append(examples)
        self.terms.append(terms or RequestOptions())
        if self.error:
            raise self.error
        scores = dict(list({"sport": 0.75, "money": 0.25}.items())[:top_k])
        prediction = SingleLabel(label="sport", score=0.75, scores=scores)
        set_timings(STAGES)
        return [prediction] * len(examples)

    async def answer(self, texts: InputTexts, terms: RequestOptions | None = None) -> OutputTensors:
        raise NotImplementedError

    def close(self) -> None:
        pass


class App:
    """An app with methods that send requests to it."""

    def __init__(self) -> None:
        self.model = FakeModel()
        self.models = Models([self.model])
        limits = LimitSettings(body_bytes=1000, texts=3, characters=50)
        self.request = MemoryServer(self.models, limits=limits).request

    def predict(self, **options: object) -> httpx.Response:
        return self.request("POST", "/v1/predict", **options)


@pytest.fixture
def app() -> App:
    return App()


def test_a_response_has_model_version_and_scores(app: App) -> None:
    answer = app.predict(json={"texts": ["a", "b"], "top_k": 1})
    prediction = {"label": "sport", "score": 0.75, "scores": {"sport": 0.75}}
    prediction |= {"truncated": False, "windows": 1}
    assert answer.status_code == 200
    assert answer.json() == {"model": "fake", "version": "1", "predictions": [prediction] * 2}


def test_inputs_reach_the_model_with_their_entities(app: App) -> None:
    app.predict(json={"inputs": [{"text": "a b", "entities": [[2, 3], [0, 1]]}]})
    assert app.model.examples == [[Example(text="a b", entities=((2, 3), (0, 1)))]]


def test_openapi_has_a_schema_for_each_kind_of_prediction(app: App) -> None:
    schemas = app.request("GET", "/openapi.json").json()["components"]["schemas"]
    assert {"SingleLabel", "MultiLabel", "RegressionValue"} <= schemas.keys()
    assert set(schemas["MultiLabel"]["properties"]) == {"labels", "scores", "truncated", "windows"}
    for name in ("SingleLabel", "MultiLabel", "RegressionValue"):
        truncated = schemas[name]["properties"]["truncated"]
        assert (truncated["type"], truncated["default"]) == ("boolean", False)
        assert "only a part of the text was read" in truncated["description"]


def test_inputs_reach_the_model_as_pairs(app: App) -> None:
    app.predict(json={"inputs": [{"text": "a", "text_pair": "b"}]})
    assert app.model.examples == [[Example(text="a", text_pair="b")]]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("input 0: bad", "correct it"), 422, "input 0: bad; correct it"),
        (NotReadyError("the engine has stopped"), 503, "the engine has stopped"),
        (TooBusyError("full", 7), 429, "full; send it again in 7 s"),
        (ValueError("secret"), 500, "internal error; see the traceback in the server log"),
    ],
)
def test_an_error_becomes_a_status_and_one_line(
    app: App, error: Exception, status: int, message: str
) -> None:
    app.model.error = error
    answer = app.predict(json={"texts": ["a"]})
    assert (answer.status_code, answer.json()) == (status, {"error": message})
    assert answer.headers.get("retry-after") == ("7" if status == 429 else None)


def test_a_chunked_body_is_stopped_at_the_limit(app: App) -> None:
    sent = []

    async def long_body() -> AsyncIterator[bytes]:
        for _ in range(100):
            sent.append(400)
            yield b" " * 400

    answer = app.predict(content=long_body())
    assert answer.status_code == 413
    message = "expected at most 1000 bytes, found more; split the texts into several requests"
    assert answer.json() == {"error": f"body: {message}"}
    assert sum(sent) <= 1200


def test_a_body_declared_too_large_is_refused_before_it_is_read(app: App) -> None:
    async def partial_body() -> AsyncIterator[bytes]:
        yield b"{"
        pytest.fail("the body was read")

    answer = app.predict(content=partial_body(), headers={"content-length": "1001"})
    assert answer.status_code == 413


def test_an_unknown_path_is_answered_with_the_paths_to_use(app: App) -> None:
    answer = app.request("POST", "/predict")
    message = "unknown path '/predict'; send texts to POST /v1/predict, or see all paths in /docs"
    assert (answer.status_code, answer.json()) == (404, {"error": message})


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/v1/predict", "POST"), ("POST", "/healthz", "GET")]
)
def test_a_wrong_method_is_answered_with_the_allowed_one(
    app: App, method: str, path: str, allowed: str
) -> None:
    answer = app.request(method, path)
    message = f"expected method {allowed}, found {method}; see the examples in /docs"
    assert (answer.status_code, answer.json()) == (405, {"error": message})
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"text": "rain"}', "text: is not a known field"),
        (b'{"texts": "rain"}', "texts: expected a valid array, found a string"),
        (b"text=rain", "body: expected JSON in UTF-8: expected ident at line 1 column 2"),
    ],
)
def test_an_invalid_body_is_answered_with_a_valid_one(app: App, body: bytes, fault: str) -> None:
    error = app.predict(content=body).json()["error"]
    assert error == fault + '; send {"texts": ["..."]}, or see all fields in /docs'


def test_a_stopping_server_is_alive_but_not_ready(app: App) -> None:
    assert app.request("GET", "/readyz").json() == {"status": "ready"}
    app.models.stopping.set()
    assert app.request("GET", "/readyz").status_code == 503
    assert app.request("GET", "/healthz").json() == {"status": "alive"}


def test_a_failed_engine_is_neither_alive_nor_ready(app: App) -> None:
    app.model.alive = False
    for path in ("/readyz", "/healthz"):
        answer = app.request("GET", path)
        assert (answer.status_code, answer.json()) == (
            503,
            {"error": "the engine of fake 1 has stopped"},
        )


def test_the_docs_page_uses_no_external_resources(app: App) -> None:
    page = app.request("GET", "/docs").text
    assert not re.search(r"https?://|//cdn", page)
    files = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(files) == 3
    for file in files:
        assert app.request("GET", file).status_code == 200
    (css,) = [file for file in files if file.endswith(".css")]
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", app.request("GET", css).text)


def test_openapi_has_request_examples_and_valid_references(app: App) -> None:
    api = app.request("GET", "/openapi.json").json()
    assert api["openapi"].startswith("3.0")
    body = api["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["examples"]) == {"texts", "pairs", "marked", "spans"}
    for reference in re.findall(r"#/[^']+", str(api)):
        node = api
        for part in reference[2:].split("/"):
            node = node[part.replace("~1", "/")]
    assert "'null'" not in str(body)


def test_the_docs_page_lists_all_operations_without_a_network(server, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is absent: apt-get install chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    flags += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=5000", "--dump-dom"]
    page = subprocess.run(
        [chromium, *flags, f"{server.url}/docs"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    shown = re.findall(r'data-path="([^"]+)"', page)
    assert shown == [
        *("/v1/predict", "/v1/status", "/healthz", "/readyz", "/metrics"),
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats"),
        *(f"/v2/models/{{name}}{tail}" for tail in ("", "/config", "/stats", "/ready", "/infer")),
        "/v2/repository/index",
        *(f"/v2/repository/models/{{name}}/{done}" for done in ("load", "unload")),
    ]
    assert "Unable to render" not in page
