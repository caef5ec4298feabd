import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from pipework.data.examples import Example
from pipework.errors import InputError, TooLargeError
from pipework.scoring.predictions import OneLabel, Prediction, SeveralLabels, Value
from pipework.serve.config import LimitSettings
from pipework.serve.http.disconnect import ClientGoneError
from pipework.serve.http.rest import (
    NotJsonError,
    check_limits,
    parse_request,
    read_body,
    write_response,
)
from pipework.serve.schemas import PredictResponse

HOSTILE = {
    "not JSON": b"rain",
    "empty": b"",
    "half": b'{"texts": ["a"',
    "invalid UTF-8": b'{"texts": ["\xff"]}',
    "lone surrogate": b'{"texts": ["\\ud800"]}',
    "deep nesting": b'{"texts": ' + b"[" * 100_000,
    "deep and closed": b'{"texts": ' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_not_json_is_told_apart_from_a_wrong_request(body: bytes) -> None:
    with pytest.raises(NotJsonError, match="body: not JSON in UTF-8") as caught:
        parse_request(body)
    assert caught.value.http_status == 400


@pytest.mark.parametrize("number", [b"9" * 10_000, b"1e999", b"-1", b"0"])
def test_a_senseless_number_is_an_error_of_the_input(number: bytes) -> None:
    with pytest.raises(InputError):
        parse_request(b'{"texts": ["a"], "top_k": ' + number + b"}")


def test_too_many_texts_are_refused_with_the_limit() -> None:
    with pytest.raises(TooLargeError, match="expected at most 2 texts, found 3"):
        check_limits([Example(text="a")] * 3, LimitSettings(texts=2))


@pytest.mark.parametrize(
    "long", [Example(text="a" * 6), Example(text="a", text_pair="b" * 6)], ids=["first", "second"]
)
def test_a_too_long_text_is_refused_with_its_place(long: Example) -> None:
    with pytest.raises(TooLargeError, match="input 1: expected at most 5 characters, found 6"):
        check_limits([Example(text="a" * 5), long], LimitSettings(characters=5))


def request_of(*messages: Message) -> Request:
    waiting = list(messages)

    async def receive() -> Message:
        if waiting:
            return waiting.pop(0)
        return await asyncio.Future()

    return Request({"type": "http"}, receive)


def test_a_hang_up_in_the_middle_of_the_body_is_no_fault_of_the_server() -> None:
    part = {"type": "http.request", "body": b'{"te', "more_body": True}
    request = request_of(part, {"type": "http.disconnect"})
    with pytest.raises(ClientGoneError):
        asyncio.run(_within(read_body(request)))


async def _within(work: object) -> object:
    return await asyncio.wait_for(work, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "predictions",
    [
        [OneLabel(label='\u00e9"', score=0.1, scores={'\u00e9"': 0.1, "b": 1e-9})],
        [SeveralLabels(labels=("x", "y"), scores={}), SeveralLabels(labels=(), scores={"x": 0.5})],
        [Value(score=float(value)) for value in ("nan", "-inf", "1e300")],
    ],
)
def test_an_answer_is_written_as_its_model_would(predictions: list[Prediction]) -> None:
    answer = PredictResponse.model_construct(model="m", version="7", predictions=predictions)
    assert write_response("m", "7", predictions) == answer.model_dump_json().encode()
