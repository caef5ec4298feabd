import pytest

from pipework.errors import InputError, TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.http.rest import read_request, write_response
from pipework.tasks.predictions import MultiLabel, Prediction, RegressionValue, SingleLabel
from pipework.wire.schemas import PredictResponse


@pytest.mark.parametrize("number", [b"9" * 10_000, b"1e999", b"-1", b"0"])
def test_an_invalid_number_is_an_input_error(number: bytes) -> None:
    with pytest.raises(InputError):
        read_request(b'{"texts": ["a"], "top_k": ' + number + b"}", LimitSettings())


def test_too_many_texts_are_rejected_with_the_limit() -> None:
    with pytest.raises(TooLargeError, match="expected at most 2 texts, found 3"):
        read_request(b'{"texts": ["a", "b", "c"]}', LimitSettings(texts=2))
    assert len(read_request(b'{"texts": ["a", "b"]}', LimitSettings(texts=2))[1]) == 2


@pytest.mark.parametrize(
    "long", ['{"text": "aaaaaa"}', '{"text": "a", "text_pair": "bbbbbb"}'], ids=["first", "second"]
)
def test_a_too_long_text_is_rejected_with_its_index(long: str) -> None:
    body = f'{{"inputs": [{{"text": "aaaaa"}}, {long}]}}'.encode()
    with pytest.raises(TooLargeError, match="input 1: expected at most 5 characters, found 6"):
        read_request(body, LimitSettings(characters=5))


@pytest.mark.parametrize(
    "predictions",
    [
        [SingleLabel(label='\u00e9"', score=0.1, scores={'\u00e9"': 0.1, "b": 1e-9})],
        [MultiLabel(labels=("x", "y"), scores={}), MultiLabel(labels=(), scores={"x": 0.5})],
        [RegressionValue(score=float(value)) for value in ("nan", "-inf", "1e300")],
    ],
)
def test_the_response_is_that_of_the_pydantic_model(predictions: list[Prediction]) -> None:
    answer = PredictResponse.model_construct(model="m", version="7", predictions=predictions)
    assert write_response("m", "7", predictions) == answer.model_dump_json().encode()
