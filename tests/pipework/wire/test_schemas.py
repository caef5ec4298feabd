import json

import pytest
from pydantic import ValidationError

from pipework.errors import TooLargeError
from pipework.wire.schemas import PredictRequest, check_json_values, explain


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[1]", "body: expected an object, found a list of 1"),
        ("{}", "body: expected exactly one of texts and inputs"),
        ('{"texts": ["a"], "inputs": [{"text": "a"}]}', "body: expected exactly one of"),
        ('{"texts": []}', "texts: expected at least one item, found none"),
        ('{"texts": "a"}', "texts: expected a valid array, found a string"),
        ('{"texts": ["a", 5]}', "texts[1]: expected a valid string, found a number"),
        ('{"texts": ["a", null]}', "texts[1]: expected a valid string, found null"),
        ('{"texts": ["a", NaN]}', "texts[1]: expected a valid string, found a number"),
        ('{"texts": [true]}', "texts[0]: expected a valid string, found a boolean"),
        ('{"inputs": [{"text": "a"}, {}]}', "inputs[1].text: is missing"),
        ('{"inputs": [{"text": {}}]}', "inputs[0].text: expected a valid string, found an object"),
        (
            '{"inputs": [{"text": "a", "entities": 5}]}',
            "inputs[0].entities: expected a valid array",
        ),
        (
            '{"inputs": [{"text": "a", "entities": [[0, 1]]}]}',
            "inputs[0].entities: expected two items, found 1",
        ),
        (
            '{"inputs": [{"text": "a", "entities": [[0, 1], [2, 3, 4]]}]}',
            "inputs[0].entities[1]: expected two items, found 3",
        ),
        (
            '{"inputs": [{"text": "a", "entities": [[0, "1"], [2, 3]]}]}',
            "inputs[0].entities[0][1]: expected a valid integer, found a string",
        ),
        ('{"text": ["a"]}', "text: is not a known field"),
        ('{"inputs": [{"text": "a", "b": 1}]}', "inputs[0].b: is not a known field"),
    ],
)
def test_an_error_has_its_field_in_one_line(body: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PredictRequest.model_validate_json(body)
    error = explain(caught.value)
    assert error.startswith(message)
    assert "\n" not in error


@pytest.mark.parametrize(
    ("top_k", "found"),
    [
        ("1.5", "1.5"),
        ("0", "0"),
        ("-3", "-3"),
        ("true", "true"),
        ("-1" + "0" * 400, "a number"),
        ("NaN", "a number"),
        ('"1"', "a string"),
        ("[1]", "a list of 1"),
    ],
)
def test_a_wrong_top_k_is_reported_with_its_type_range_and_value(top_k: str, found: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PredictRequest.model_validate_json(f'{{"texts": ["a"], "top_k": {top_k}}}')
    expected = f"top_k: expected a whole number of at least 1, found {found}"
    assert explain(caught.value) == expected


def test_texts_and_inputs_become_examples() -> None:
    texts = PredictRequest.model_validate_json('{"texts": ["a", ""]}').examples()
    assert [(example.text, example.text_pair) for example in texts] == [("a", None), ("", None)]
    inputs = PredictRequest.model_validate_json('{"inputs": [{"text": "a", "text_pair": "b"}]}')
    assert [(example.text, example.text_pair) for example in inputs.examples()] == [("a", "b")]


def few_values(body: bytes) -> bool:
    try:
        check_json_values(body, 100)
    except TooLargeError:
        return False
    return True


def test_too_many_values_are_an_error_with_the_limit_of_texts() -> None:
    expected = "body: expected at most 100 texts, found more than 2624 JSON values"
    with pytest.raises(TooLargeError, match=expected):
        check_json_values(b"0," * 2625, 100)


def test_a_largest_request_has_few_values() -> None:
    text = 'a, "b", [c], {d} and \\ or \\" \u00fc' * 50
    span = {"text": text, "text_pair": text, "entities": [[0, 1], [2, 3]]}
    assert few_values(json.dumps({"inputs": [span] * 100, "top_k": 3}).encode())
    for texts in ([text] * 100, [[text]] * 100, ["\\" * 7] * 100, ['\\"' * 7 + "," * 999] * 100):
        assert few_values(json.dumps({"texts": texts}).encode())


@pytest.mark.parametrize(
    "part",
    [b"0,", b'"",', b"[],", b"{},", b"[" * 9 + b"]" * 9 + b",", b'"\\\\",', b'"\\",",', b'"a":1,'],
)
@pytest.mark.parametrize("end", [b"0]}", b""])
def test_many_values_are_counted_outside_of_strings(part: bytes, end: bytes) -> None:
    assert few_values(b'{"texts":[' + part * 10 + end)
    assert not few_values(b'{"texts":[' + part * 2700 + end)


def test_a_string_is_one_value_whatever_it_contains() -> None:
    for inner in (b"0,", b"[],", b"{", b'\\",', b"\\\\,", b'\\\\\\",'):
        body = b'{"texts":["' + inner * 5000 + b'"]}'
        assert few_values(body)
        assert few_values(body[:-3])
        json.loads(body)


def test_the_first_fault_of_a_large_list_ends_its_validation() -> None:
    for field in ("texts", "inputs"):
        with pytest.raises(ValidationError) as caught:
            PredictRequest.model_validate_json(json.dumps({field: ["a"] + [1] * 1000}))
        assert caught.value.error_count() <= 1
