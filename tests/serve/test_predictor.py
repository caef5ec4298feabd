import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipework.errors import InputError, NotReadyError, RunFolderError
from pipework.examples import Example
from pipework.manifest import read_manifest
from serve.predictor import Predictor


@pytest.fixture
def predictor(run: Path) -> Iterator[Predictor]:
    with Predictor(run) as predictor:
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


def test_no_texts_give_no_predictions(predictor: Predictor) -> None:
    assert asyncio.run(predictor.predict([])) == []


def test_many_callers_at_once_each_get_their_own_answer(predictor: Predictor) -> None:
    texts = ["rain", "goal", "bank"] * 40

    async def ask() -> list[str]:
        answers = await asyncio.gather(*(predictor.predict([Example(text=text)]) for text in texts))
        return [answer[0].label for answer in answers]

    assert asyncio.run(ask()) == ["weather", "sport", "money"] * 40


def test_a_pair_model_compares_two_texts(pair_run: Path) -> None:
    with Predictor(pair_run) as predictor:
        pair = [Example(text="rain", text_pair="goal")]
        assert asyncio.run(predictor.predict(pair))[0].label == "sport"
        with pytest.raises(InputError, match="input 1: expected a text and a text_pair"):
            asyncio.run(predictor.predict([*pair, Example(text="rain")]))


def test_a_single_text_model_refuses_a_pair(predictor: Predictor) -> None:
    pair = [Example(text="rain", text_pair="goal")]
    with pytest.raises(InputError, match="input 0: found a text_pair, but this model takes one"):
        asyncio.run(predictor.predict(pair))


def test_the_version_names_the_engine_file(run: Path, predictor: Predictor) -> None:
    assert read_manifest(run).engines[0].files[0].sha256.startswith(predictor.version)
    assert predictor.name == "topics"


def test_a_closed_predictor_refuses(run: Path) -> None:
    predictor = Predictor(run)
    predictor.close()
    assert not predictor.alive
    with pytest.raises(NotReadyError):
        asyncio.run(predictor.predict([Example(text="rain")]))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"holds no manifest\.json"):
        Predictor(tmp_path)
