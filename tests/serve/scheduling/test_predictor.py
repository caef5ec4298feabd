import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipework.data.examples import Example
from pipework.errors import DeadlineError, InputError, NotReadyError, RunFolderError
from pipework.machine import cpu_limit, processor
from pipework.run_folder.manifest import read_manifest
from pipework.serve.config import QueueSettings
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.models import open_models
from pipework.serve.models.open_models import open_predictor
from pipework.serve.request.context import RequestOptions
from pipework.serve.request.statistics import RefusalReason
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.predictions import MultiLabel, Prediction, RegressionValue
from pipework.text.encoding import TextEncoder
from pipework.wire.text_tensors import InputTexts


@pytest.fixture
def predictor(run: Path) -> Iterator[Predictor]:
    with open_predictor(run) as predictor:
        yield predictor


def test_texts_get_their_labels(predictor: Predictor) -> None:
    examples = [Example(text=text) for text in ("rain", "goal team", "stock", "SUN and wind")]
    predictions = asyncio.run(predictor.predict(examples))
    assert [one.label for one in predictions] == ["weather", "sport", "money", "weather"]
    assert sum(predictions[0].scores.values()) == pytest.approx(1)


@pytest.mark.parametrize(("top_k", "expected"), [(1, 1), (2, 2), (10**30, 3), (None, 3)])
def test_top_k_limits_the_scores(predictor: Predictor, top_k: int | None, expected: int) -> None:
    (prediction,) = asyncio.run(predictor.predict([Example(text="goal")], top_k))
    assert next(iter(prediction.scores)) == prediction.label == "sport"
    assert len(prediction.scores) == expected


@pytest.mark.parametrize("kind", ["run", "pair_run", "entity_run", "multi_run", "regression_run"])
def test_predictions_of_truncated_texts_are_marked_and_counted(
    kind: str, request: pytest.FixtureRequest
) -> None:
    texts = [f"<e1>rain</e1> {'sun ' * words} <e2>goal</e2>" for words in (0, 40, 3, 300)]
    pair = "rain" if kind == "pair_run" else None
    examples = [Example(text=text, text_pair=pair) for text in texts]
    with open_predictor(request.getfixturevalue(kind)) as predictor:
        predictions = asyncio.run(predictor.predict(examples))
        sent = InputTexts(
            text=[text.encode() for text in texts], text_pair=pair and [pair.encode()] * 4
        )
        assert asyncio.run(predictor.answer(sent)).parameters() == {"truncated": "1,3"}
        totals = predictor.scheduler.statistics.totals
        assert (totals.texts, totals.truncated) == (8, 4)
    assert [prediction.truncated for prediction in predictions] == [False, True, False, True]


def test_no_texts_give_no_predictions(predictor: Predictor) -> None:
    assert asyncio.run(predictor.predict([])) == []


def test_many_callers_at_once_each_get_their_own_answer(predictor: Predictor) -> None:
    texts = ["rain", "goal", "bank"] * 40

    async def ask() -> list[str]:
        answers = await asyncio.gather(*(predictor.predict([Example(text=text)]) for text in texts))
        return [answer[0].label for answer in answers]

    assert asyncio.run(ask()) == ["weather", "sport", "money"] * 40


def test_a_pair_model_compares_two_texts(pair_run: Path) -> None:
    with open_predictor(pair_run) as predictor:
        pair = [Example(text="rain", text_pair="goal")]
        assert asyncio.run(predictor.predict(pair))[0].label == "sport"
        with pytest.raises(InputError, match="input 1: expected a text and a text_pair"):
            asyncio.run(predictor.predict([*pair, Example(text="rain")]))


def test_a_single_text_model_refuses_a_pair(predictor: Predictor) -> None:
    pair = [Example(text="rain", text_pair="goal")]
    with pytest.raises(
        InputError, match="input 0: found a text_pair, but this model classifies single texts"
    ):
        asyncio.run(predictor.predict(pair))


def answers(run: Path, *examples: Example, top_k: int | None = None) -> list[Prediction]:
    with open_predictor(run) as predictor:
        return asyncio.run(predictor.predict(list(examples), top_k))


def test_an_entity_model_takes_marked_texts_and_spans(entity_run: Path) -> None:
    marked = Example(text="<e2>rain</e2> or <e1>goal</e1>")
    spans = Example(text="rain or goal", entities=((8, 12), (0, 4)))
    turned = Example(text="<e1>rain</e1> or <e2>goal</e2>")
    first, second, third = answers(entity_run, marked, spans, turned)
    assert first == second
    assert (first.label, third.label) == ("weather", "sport")


def test_an_entity_model_refuses_a_text_without_its_marks(entity_run: Path) -> None:
    with pytest.raises(InputError, match="input 1: expected <e1> once, found it 0 times"):
        answers(entity_run, Example(text="<e1>rain</e1> <e2>goal</e2>"), Example(text="rain"))


def test_other_models_refuse_spans_and_read_marks_as_text(predictor: Predictor) -> None:
    spans = Example(text="rain goal", entities=((0, 4), (5, 9)))
    with pytest.raises(InputError, match="input 0: found entities, but this model"):
        asyncio.run(predictor.predict([spans]))
    marked = Example(text="<e1>rain</e1>")
    assert asyncio.run(predictor.predict([marked]))[0].label == "weather"


def test_a_multi_label_model_applies_its_thresholds(multi_run: Path) -> None:
    rain, odd = answers(multi_run, Example(text="rain"), Example(text="odd"), top_k=1)
    assert rain == MultiLabel(labels=("weather", "money"), scores=rain.scores)
    assert list(rain.scores) == ["weather"]
    assert odd.labels == ("money",)  # every score is a half


def test_a_regression_model_returns_a_number(regression_run: Path) -> None:
    rain, goal = answers(regression_run, Example(text="rain wind"), Example(text="goal"))
    assert isinstance(rain, RegressionValue)
    assert rain.score > 2
    assert goal == RegressionValue(score=0)


def test_the_default_version_is_a_digest_of_the_engine_files(
    run: Path, predictor: Predictor
) -> None:
    assert read_manifest(run).engines[0].digest.startswith(f"{int(predictor.version):012x}")
    assert predictor.name == "topics"


@pytest.mark.parametrize("kind", ["run", "pair_run", "entity_run", "multi_run", "regression_run"])
def test_warm_up_computes_a_text_and_counts_no_request(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with open_predictor(request.getfixturevalue(kind)) as predictor:
        predictor.warm()
        assert predictor.scheduler.load.batch_texts == 1
        assert predictor.scheduler.statistics.totals.answered == 0


def test_prove_checks_parity_on_the_stored_reference_rows(
    run: Path, kept_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pipework.serve.engines.reproof")
    open_predictor(kept_run).close()
    assert not caplog.records  # its record has parity on this kind of processor
    open_predictor(kept_run, prove=True).close()
    assert "engine onnx proven on" in caplog.text
    with pytest.raises(RunFolderError, match=r"expected one file rows\.npz"):
        open_predictor(run, prove=True)


def test_a_closed_predictor_refuses(run: Path) -> None:
    predictor = open_predictor(run)
    predictor.close()
    assert not predictor.alive
    with pytest.raises(NotReadyError):
        asyncio.run(predictor.predict([Example(text="rain")]))


def test_engines_are_closed_when_the_tokenizer_cannot_be_opened(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(OnnxRuntimeEngine, "close", lambda _: closed.append("engine"))
    monkeypatch.setattr(TextEncoder, "open", _refuse)
    with pytest.raises(RunFolderError, match="no tokenizer"):
        open_predictor(run)
    assert len(closed) == min(2, cpu_limit())


def _refuse(*_: object, **__: object) -> None:
    message = "no tokenizer"
    raise RunFolderError(message)


def test_several_engines_share_the_cpus_and_return_the_same_predictions(
    run: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def opened(self: OnnxRuntimeEngine, *given: object, **options: object) -> None:
        threads.append(options["threads"])
        init(self, *given, **options)  # type: ignore[arg-type]

    init = OnnxRuntimeEngine.__init__
    monkeypatch.setattr(OnnxRuntimeEngine, "__init__", opened)
    monkeypatch.setattr("pipework.serve.engines.cpu_limit", lambda: 8)
    examples = [Example(text=text) for text in ("rain", "goal team")]
    with open_predictor(run, queue=QueueSettings(instances=3)) as several:
        assert several.scheduler.load.engines == 3
        found = asyncio.run(several.predict(examples))
    assert threads == [3, 3, 3]  # of 8
    assert found == asyncio.run(predictor.predict(examples))


@pytest.mark.parametrize(("processors", "engines"), [(1, 1), (2, 2), (8, 2)])
def test_a_machine_with_several_cpus_has_two_engines(
    run: Path, monkeypatch: pytest.MonkeyPatch, processors: int, engines: int
) -> None:
    monkeypatch.setattr("pipework.serve.engines.cpu_limit", lambda: processors)
    with open_predictor(run) as predictor:
        assert predictor.scheduler.load.engines == engines


def test_a_gpu_has_one_engine(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipework.serve.engines.cpu_limit", lambda: 8)
    monkeypatch.setattr(OnnxRuntimeEngine, "on_gpu", True)
    with open_predictor(run) as predictor:
        assert predictor.scheduler.load.engines == 1


@pytest.mark.parametrize(
    ("devices", "level", "idle"),
    [
        ("3", "INFO", ""),
        ("01234567", "WARNING", "; 7 other GPUs are idle: --workers auto uses all"),
    ],
)
def test_the_gpu_that_computes_and_the_idle_ones_are_reported_once(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    devices: str,
    level: str,
    idle: str,
) -> None:
    monkeypatch.setattr(OnnxRuntimeEngine, "on_gpu", True)
    monkeypatch.setattr(open_models, "cuda_devices", lambda: [*devices])
    caplog.set_level("INFO")
    for _ in range(2):
        with open_predictor(run):
            pass
    records = [(one.levelname, one.message) for one in caplog.records]
    report = f"engines compute on GPU {devices[0]} ({processor()}){idle}"
    assert [record for record in records if "GPU" in record[1]] == [(level, report)]


def test_a_deadline_that_has_passed_before_the_queue_is_counted(predictor: Predictor) -> None:
    options = RequestOptions(deadline_s=time.monotonic())
    with pytest.raises(DeadlineError):
        asyncio.run(predictor.predict([Example(text="rain")], options=options))
    assert predictor.scheduler.load.refused[RefusalReason.DEADLINE] == 1


def test_a_model_of_pairs_names_the_fields_of_a_request(pair_run: Path) -> None:
    with open_predictor(pair_run) as predictor, pytest.raises(InputError) as caught:
        asyncio.run(predictor.predict([Example(text="rain")]))
    assert "in a request, send inputs with text and text_pair" in str(caught.value.hint)
