"""Texts without a label are answered by another server."""

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipework import Client
from pipework.errors import ConfigError
from pipework.predict.text_model import TextCodec
from pipework.serve.app import build_app
from pipework.serve.config import EscalationSettings, ServeSettings
from pipework.serve.http.escalation import Escalation
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.observability.metrics import ServerMetrics
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.predictions import AbstainedLabel, EscalatedLabel, Prediction, SingleLabel
from pipework.text.encoding import open_encoder
from tests.serve.servers import server_in_thread

TEXTS = ["rain and sun", "a goal", "stock prices", "the", "wind", "goal goal goal"]
Start = Callable[..., tuple[str, Models]]


def ask(url: str, texts: Sequence[str], top_k: int | None = None) -> list[Prediction]:
    with Client(url) as client:
        return client.predict(texts, top_k)


def scores(run: Path) -> list[float]:
    with Models([open_predictor(run)]) as models, server_in_thread(build_app(models)) as url:
        return sorted(one.score for one in ask(url, TEXTS))  # type: ignore[union-attr]


def abstaining(run: Path, min_score: float) -> Predictor:
    """Return a predictor that gives no label below a score."""
    predictor = open_predictor(run)
    task = predictor.manifest.task.model_copy(update={"min_scores": (min_score,)})
    manifest = predictor.manifest.model_copy(update={"task": task})
    vars(predictor)["_codec"] = TextCodec(manifest, open_encoder(run, manifest))
    return predictor


@pytest.fixture
def start(run: Path) -> Iterator[Start]:
    """A function that starts a server that abstains, and asks a URL."""
    with ExitStack() as stack:

        def server(url: str | None, min_score: float = 2, **options: Any) -> tuple[str, Models]:
            models = stack.enter_context(Models([abstaining(run, min_score)]))
            settings = ServeSettings(escalation=EscalationSettings(url=url, **options))
            escalation = stack.enter_context(Escalation.of(settings.escalation))
            handler = build_app(models, settings, escalation=escalation)
            return stack.enter_context(server_in_thread(handler)), models

        yield server


def counts(models: Models) -> tuple[float, float]:
    lines = ServerMetrics(models).text().decode().splitlines()
    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines if "{" in line}
    return found["pipework_escalated_texts_total"], found["pipework_escalation_failures_total"]


def test_the_other_server_answers_texts_without_a_label(run: Path, start: Start) -> None:
    half = len(TEXTS) // 2
    middle = sum(scores(run)[half - 1 : half + 1]) / 2
    with Models([open_predictor(run)]) as models, server_in_thread(build_app(models)) as other:
        expected = ask(other, TEXTS, top_k=2)
        url, front = start(other, middle)
        found = ask(url, TEXTS, top_k=2)
    kinds = [type(one) for one in found]
    assert kinds.count(EscalatedLabel) == kinds.count(SingleLabel) == half
    for one, alone in zip(found, expected, strict=True):
        assert isinstance(one, SingleLabel)
        assert isinstance(alone, SingleLabel)
        assert isinstance(one, EscalatedLabel) == (alone.score < middle)
        assert (one.label, one.scores) == (alone.label, alone.scores)
    assert counts(front) == (half, 0)


def test_a_server_that_cannot_be_reached_is_asked_once_in_a_while(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url, models = start(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                found = ask(url, TEXTS)
                assert {type(one) for one in found} == {AbstainedLabel}
    (warning,) = [one for one in caplog.messages if "escalation.url" in one]
    assert "not asked for 5 s" in warning
    assert counts(models) == (0, 3 * len(TEXTS))


def test_a_server_that_does_not_respond_delays_a_request_by_the_timeout_only(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url, models = start(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        with caplog.at_level(logging.WARNING):
            assert ask(url, ["rain"])[0].score > 0
    assert "in 0.2 s" in " ".join(caplog.messages)
    assert counts(models) == (0, 1)


def test_an_escalated_request_is_not_escalated_again(start: Start) -> None:
    second, second_models = start("http://127.0.0.1:9")
    first, _ = start(second)
    assert isinstance(ask(first, ["rain"])[0], AbstainedLabel)
    assert counts(second_models) == (0, 0)
    (model,) = second_models.serving()
    assert model.scheduler.statistics.totals.answered == 1


def test_a_request_that_the_other_server_refuses_stops_nothing(run: Path, start: Start) -> None:
    limits = ServeSettings.model_validate({"limits": {"texts": 2}})
    with (
        Models([open_predictor(run)]) as models,
        server_in_thread(build_app(models, limits)) as other,
    ):
        url, front = start(other)
        many = ask(url, TEXTS)
        few = ask(url, TEXTS[:2])
    assert {type(one) for one in many} == {AbstainedLabel}
    assert {type(one) for one in few} == {EscalatedLabel}
    assert counts(front) == (2, len(TEXTS))


def test_an_invalid_url_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"^escalation\.url: ftp://host: expected http://"):
        Escalation.of(EscalationSettings(url="ftp://host"))
