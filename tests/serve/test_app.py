import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pipework.data.examples import Example
from pipework.errors import InputError, NotReadyError, TooBusyError
from pipework.run_folder.task import TaskKind
from pipework.scoring.predictions import OneLabel, Prediction
from pipework.serve.app import build_app
from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.models.registry import Models
from pipework.serve.request.options import Terms
from pipework.serve.request.statistics import Load, Totals
from pipework.serve.request.timings import Stages, Timed
from pipework.serve.scheduling.model_protocol import Card
from pipework.serve.text_tensors import Answer, Texts

LOAD = Load(waiting_requests=2, waiting_tokens=30, batches=4, batch_tokens=500)
STAGES = Stages(tokenize_s=0.001, queue_s=0.002, infer_s=0.003, decode_s=0.004)


class FakeAnswerer:
    """Answers every text with sport, or raises `error`."""

    name = "fake"
    version = "1"
    engine = "onnx"
    alive = ready = True
    card = Card(kind=TaskKind.SINGLE_LABEL, labels=("sport", "money"), precision="fp32")
    load = LOAD
    totals = Totals()
    inputs = ("text",)
    classes = 2

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[list[Example]] = []
        self.terms: list[Terms] = []

    def check_room(self) -> None:
        if isinstance(self.error, TooBusyError):
            raise self.error

    async def predict(
        self, examples: list[Example], top_k: int | None = None, terms: Terms | None = None
    ) -> Timed[list[Prediction]]:
        self.asked.append(examples)
        self.terms.append(terms or Terms())
        if self.error:
            raise self.error
        scores = dict(list({"sport": 0.75, "money": 0.25}.items())[:top_k])
        one = OneLabel(label="sport", score=0.75, scores=scores)
        return Timed(value=[one] * len(examples), stages=STAGES)

    async def answer(self, texts: Texts, terms: Terms | None = None) -> Timed[Answer]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class App:
    """An app and a way to ask it."""

    def __init__(self) -> None:
        self.answerer = FakeAnswerer()
        self.models = Models([self.answerer])
        limits = LimitSettings(body_bytes=1000, texts=3, characters=50)
        self.app = build_app(self.models, ServeSettings(limits=limits))

    def ask(self, method: str, path: str, **options: object) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                return await client.request(method, path, **options)  # type: ignore[arg-type]

        return asyncio.run(send())

    def predict(self, **options: object) -> httpx.Response:
        return self.ask("POST", "/v1/predict", **options)


@pytest.fixture
def app() -> App:
    return App()


def test_texts_are_answered_with_model_version_and_scores(app: App) -> None:
    answer = app.predict(json={"texts": ["a", "b"], "top_k": 1})
    prediction = {"label": "sport", "score": 0.75, "scores": {"sport": 0.75}}
    assert answer.status_code == 200
    assert answer.json() == {"model": "fake", "version": "1", "predictions": [prediction] * 2}


def test_inputs_reach_the_model_with_their_entities(app: App) -> None:
    app.predict(json={"inputs": [{"text": "a b", "entities": [[2, 3], [0, 1]]}]})
    assert app.answerer.asked == [[Example(text="a b", entities=((2, 3), (0, 1)))]]


def test_the_description_holds_each_kind_of_answer(app: App) -> None:
    schemas = app.ask("GET", "/openapi.json").json()["components"]["schemas"]
    assert {"OneLabel", "SeveralLabels", "Value"} <= schemas.keys()
    assert set(schemas["SeveralLabels"]["properties"]) == {"labels", "scores"}


def test_inputs_reach_the_model_as_pairs(app: App) -> None:
    app.predict(json={"inputs": [{"text": "a", "text_pair": "b"}]})
    assert app.answerer.asked == [[Example(text="a", text_pair="b")]]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("input 0: bad", "mend it"), 422, "input 0: bad; mend it"),
        (NotReadyError("the engine has stopped"), 503, "the engine has stopped"),
        (TooBusyError("full", 7), 429, "full; send it again in 7 s"),
        (ValueError("secret"), 500, "internal error; the server's log has the traceback"),
    ],
)
def test_errors_become_one_line_with_their_status(
    app: App, error: Exception, status: int, message: str
) -> None:
    app.answerer.error = error
    answer = app.predict(json={"texts": ["a"]})
    assert (answer.status_code, answer.json()) == (status, {"error": message})
    assert answer.headers.get("retry-after") == ("7" if status == 429 else None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"rain", 400),
        (b'{"texts": ["\xff"]}', 400),
        (b'{"texts": ["\\udc00"]}', 400),
        (b'{"texts": ' + b"[" * 900, 400),
        (b'{"texts": NaN}', 422),
        (b'{"texts": [], "top_k": ' + b"9" * 900 + b"}", 422),
        (b'{"texts": ["a", "b", "c", "d"]}', 413),
        (b'{"texts": ["' + b"a" * 51 + b'"]}', 413),
        (b" " * 1001, 413),
    ],
)
def test_bad_bodies_are_never_a_500(app: App, body: bytes, status: int) -> None:
    answer = app.predict(content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert app.answerer.asked == []


def test_a_chunked_body_is_stopped_at_the_limit(app: App) -> None:
    sent = []

    async def long() -> AsyncIterator[bytes]:
        for _ in range(100):
            sent.append(400)
            yield b" " * 400

    answer = app.predict(content=long())
    assert answer.status_code == 413
    assert answer.json() == {"error": "body: expected at most 1000 bytes, found more"}
    assert sum(sent) <= 1200


def test_a_body_declared_too_large_is_refused_before_it_is_read(app: App) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        pytest.fail("read on")

    answer = app.predict(content=never(), headers={"content-length": "1001"})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/predict", 405), ("GET", "/nowhere", 404)]
)
def test_unknown_paths_and_methods_answer_in_the_same_form(
    app: App, method: str, path: str, status: int
) -> None:
    answer = app.ask(method, path)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_a_stopping_server_is_alive_but_not_ready(app: App) -> None:
    assert app.ask("GET", "/readyz").json() == {"status": "ready"}
    app.models.stopping.set()
    assert app.ask("GET", "/readyz").status_code == 503
    assert app.ask("GET", "/healthz").json() == {"status": "alive"}


def test_a_dead_engine_is_neither_alive_nor_ready(app: App) -> None:
    app.answerer.alive = False
    for path in ("/readyz", "/healthz"):
        answer = app.ask("GET", path)
        assert (answer.status_code, answer.json()) == (
            503,
            {"error": "the engine of fake 1 has stopped"},
        )


def test_metrics_count_requests_and_show_the_load(app: App) -> None:
    app.predict(json={"texts": ["a"]})
    app.predict(content=b"rain")
    lines = app.ask("GET", "/metrics").text.splitlines()
    assert 'pipework_requests_total{door="v1",model="fake",status="200"} 1.0' in lines
    assert 'pipework_requests_total{door="v1",model="fake",status="400"} 1.0' in lines
    assert 'pipework_request_duration_seconds_count{door="v1",model="fake"} 1.0' in lines
    for name, value in (
        ("queue_requests", 2),
        ("queue_tokens", 30),
        ("batches_total", 4),
        ("batch_tokens_total", 500),
    ):
        labels = '{model="fake",version="1"}'
        assert f"pipework_{name}{labels} {value}.0" in lines


def test_two_apps_count_apart(app: App) -> None:
    app.predict(json={"texts": ["a"]})
    assert 'status="200"' not in App().ask("GET", "/metrics").text


def test_the_docs_and_their_files_refer_to_nothing_outside(app: App) -> None:
    page = app.ask("GET", "/docs").text
    assert not re.search(r"https?://|//cdn", page)
    files = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(files) == 3
    for file in files:
        assert app.ask("GET", file).status_code == 200
    (css,) = [file for file in files if file.endswith(".css")]
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", app.ask("GET", css).text)


def test_the_description_shows_requests_and_resolves_its_references(app: App) -> None:
    api = app.ask("GET", "/openapi.json").json()
    assert api["openapi"].startswith("3.0")
    body = api["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["examples"]) == {"texts", "pairs", "marked", "spans"}
    for reference in re.findall(r"#/[^']+", str(api)):
        node = api
        for part in reference[2:].split("/"):
            node = node[part.replace("~1", "/")]
    assert "'null'" not in str(body)


def test_a_browser_without_network_shows_the_operations(server, tmp_path: Path) -> None:
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
