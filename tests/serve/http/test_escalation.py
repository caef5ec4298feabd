"""Texts without a label are answered by another server."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipework import Client
from pipework.errors import ConfigError
from pipework.predict.text_model import TextCodec
from pipework.serve.app import build_app, open_escalation
from pipework.serve.config import EscalationSettings, ServeSettings
from pipework.serve.http import escalation
from pipework.serve.http.escalation import Escalation
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.observability.metrics import ServerMetrics
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.predictions import AbstainedLabel, EscalatedLabel, Prediction, SingleLabel
from pipework.text.encoding import open_encoder
from tests.serve.conftest import MakeRun
from tests.serve.servers import server_in_thread

TEXTS = ["rain and sun", "a goal", "stock prices", "the", "wind", "goal goal goal"]
NEVER = 2.0  # a score that no label reaches
Start = Callable[..., tuple[str, Models]]


def ask(url: str, texts: Sequence[str], top_k: int | None = None) -> list[Prediction]:
    with Client(url) as client:
        return client.predict(texts, top_k)


def kinds(predictions: Sequence[Prediction]) -> set[type]:
    return {type(one) for one in predictions}


def abstaining(run: Path, min_score: float) -> Predictor:
    """Return a predictor that gives no label below a score."""
    predictor = open_predictor(run)
    task = predictor.manifest.task.model_copy(update={"min_scores": (min_score,)})
    manifest = predictor.manifest.model_copy(update={"task": task})
    vars(predictor)["_codec"] = TextCodec(manifest, open_encoder(run, manifest))
    return predictor


@pytest.fixture
def start(run: Path) -> Iterator[Start]:
    """A function that starts a server that abstains, and asks another one."""
    with ExitStack() as stack:

        def server(url: str, min_score: float = NEVER, **options: Any) -> tuple[str, Models]:
            models = stack.enter_context(Models([abstaining(run, min_score)]))
            settings = ServeSettings(escalation=EscalationSettings(url=url, **options))
            return stack.enter_context(server_in_thread(build_app(models, settings))), models

        yield server


@pytest.fixture
def other(run: Path) -> Iterator[str]:
    """The URL of a server that gives a label to each text."""
    limits = ServeSettings.model_validate({"limits": {"texts": 8}})
    with (
        Models([open_predictor(run)]) as models,
        server_in_thread(build_app(models, limits)) as url,
    ):
        yield url


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that does not respond."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def counts(models: Models) -> tuple[float, float]:
    lines = ServerMetrics(models).text().decode().splitlines()
    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines if "{" in line}
    return found["pipework_escalated_texts_total"], found["pipework_escalation_failures_total"]


def test_the_other_server_answers_texts_without_a_label(start: Start, other: str) -> None:
    expected = ask(other, TEXTS, top_k=2)
    scores = sorted(one.score for one in expected if isinstance(one, SingleLabel))
    half = len(TEXTS) // 2
    middle = (scores[half - 1] + scores[half]) / 2
    url, models = start(other, middle)
    found = ask(url, TEXTS, top_k=2)
    assert [isinstance(one, EscalatedLabel) for one in found].count(True) == half
    for one, alone in zip(found, expected, strict=True):
        assert isinstance(one, SingleLabel)
        assert isinstance(alone, SingleLabel)
        assert isinstance(one, EscalatedLabel) == (alone.score < middle)
        assert (one.label, one.scores) == (alone.label, alone.scores)
    assert counts(models) == (half, 0)


def test_a_large_request_is_divided(
    start: Start, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(escalation, "TEXTS", 4)  # the other server takes 8
    url, models = start(other)
    found = ask(url, [f"rain {number}" for number in range(30)])
    assert [one.label for one in found if isinstance(one, EscalatedLabel)] == [
        one.label
        for start_ in range(0, 30, 6)
        for one in ask(other, [f"rain {number}" for number in range(start_, start_ + 6)])
        if isinstance(one, SingleLabel)
    ]
    assert counts(models) == (30, 0)


def test_a_failing_server_is_paused_and_tried_again(
    start: Start, other: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    post = httpx.AsyncClient.post
    posts = []

    async def refusing(client: httpx.AsyncClient, *arguments: Any, **options: Any) -> Any:
        posts.append(time.monotonic())
        if len(posts) <= escalation.MOST_FAILURES:
            message = "the cable is out"
            raise httpx.ConnectError(message)
        return await post(client, *arguments, **options)

    monkeypatch.setattr(httpx.AsyncClient, "post", refusing)
    monkeypatch.setattr(escalation, "PAUSE_S", 0.5)
    url, models = start(other)
    with caplog.at_level(logging.WARNING):
        while len(posts) <= escalation.MOST_FAILURES:
            last = ask(url, ["rain"])
    assert posts[-1] - posts[-2] >= 0.5
    assert kinds(last) == {EscalatedLabel}
    assert kinds(ask(url, ["rain"])) == {EscalatedLabel}
    assert "the cable is out" in caplog.text
    assert counts(models)[1] > escalation.MOST_FAILURES


def test_a_silent_server_delays_requests_by_the_timeout_only(
    start: Start, silent: str, caplog: pytest.LogCaptureFixture
) -> None:
    url, models = start(silent, timeout_s=0.2)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert kinds(ask(url, ["rain"])) == {AbstainedLabel}
    assert caplog.text.count("no response in 0.2 s") == 1
    assert counts(models) == (0, 5)


def test_a_silent_server_does_not_exceed_the_deadline_of_a_client(
    start: Start, silent: str
) -> None:
    url, models = start(silent, timeout_s=60)
    with Client(url, timeout_s=2) as client:
        assert kinds(client.predict(["rain"])) == {AbstainedLabel}
    assert counts(models) == (0, 1)


def test_more_calls_than_allowed_wait_and_are_no_failures(
    start: Start, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, most = [0], [0]
    post = httpx.AsyncClient.post

    async def slow(client: httpx.AsyncClient, *arguments: Any, **options: Any) -> Any:
        active[0] += 1
        most[0] = max(most[0], active[0])
        await asyncio.sleep(0.05)
        try:
            return await post(client, *arguments, **options)
        finally:
            active[0] -= 1

    url, models = start(other, timeout_s=30)

    async def all_at_once() -> list[str]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            bodies = [{"texts": [f"rain {number}"]} for number in range(40)]
            calls = (client.request("POST", "/v1/predict", json=body) for body in bodies)
            return [response.text for response in await asyncio.gather(*calls)]

    monkeypatch.setattr(httpx.AsyncClient, "post", slow)
    assert all('"escalated":true' in text for text in asyncio.run(all_at_once()))
    assert 1 < most[0] <= escalation.CALLS
    assert counts(models) == (40, 0)


def test_an_escalated_request_is_not_escalated_again(start: Start, silent: str) -> None:
    second, second_models = start(silent)
    first, _ = start(second)
    assert kinds(ask(first, ["rain"])) == {AbstainedLabel}
    assert counts(second_models) == (0, 0)
    (model,) = second_models.serving()
    assert model.scheduler.statistics.totals.answered == 1


def test_a_refused_request_stops_nothing(
    start: Start, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    url, models = start(other)
    with caplog.at_level(logging.WARNING):
        for _ in range(escalation.MOST_FAILURES + 1):
            assert kinds(ask(url, [*TEXTS, *TEXTS])) == {AbstainedLabel}  # more than it takes
    assert caplog.text.count("expected at most 8 texts, found 12") == 1
    assert kinds(ask(url, TEXTS)) == {EscalatedLabel}
    assert counts(models) == (6, 12 * (escalation.MOST_FAILURES + 1))


def test_answers_of_another_kind_are_failures(
    start: Start, make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Models([open_predictor(make_run(kind="multi_label"))]) as others,
        server_in_thread(build_app(others)) as url,
    ):
        front, models = start(url)
        with caplog.at_level(logging.WARNING):
            assert kinds(ask(front, ["rain"])) == {AbstainedLabel}
    assert "expected 1 predictions with one label, found 1 of another kind" in caplog.text
    assert counts(models) == (0, 1)


def test_the_key_and_the_priority_are_sent(
    start: Start, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    post = httpx.AsyncClient.post

    async def noted(client: httpx.AsyncClient, *arguments: Any, **options: Any) -> Any:
        sent.append(options["headers"])
        return await post(client, *arguments, **options)

    monkeypatch.setenv("PIPEWORK_API_KEY", "secret")
    monkeypatch.setattr(httpx.AsyncClient, "post", noted)
    url, _ = start(other)
    ask(url, ["rain"])
    with Client(url, bulk=True) as client:
        client.predict(["rain"])
    assert [one["Authorization"] for one in sent] == ["Bearer secret"] * 2
    assert [one.get("X-Priority") for one in sent] == [None, "bulk"]


def test_an_adapter_answers_as_the_readme_shows(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (Path(escalation.__file__).parents[1] / "README.md").read_text()
    (shown,) = [line for line in readme.splitlines() if line.startswith('{"model": "llm"')]

    async def adapter(_: httpx.AsyncClient, url: str, **options: Any) -> httpx.Response:
        assert url == "http://adapter/v1/predict"
        assert json.loads(options["content"])["inputs"] == [{"text": "rain"}]
        return httpx.Response(200, text=shown)

    url, _ = start("http://adapter")
    monkeypatch.setattr(httpx.AsyncClient, "post", adapter)
    expected = EscalatedLabel(label="sports", score=0.9, scores={"sports": 0.9})
    assert ask(url, ["rain"]) == [expected]


@pytest.mark.parametrize("url", ["ftp://host", "grpc://host:1", "host"])
def test_an_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^escalation: .*expected http://"):
        Escalation(url, 1)
    assert open_escalation(EscalationSettings()) is None
