import pytest
from pydantic import ValidationError

from pipework.serve.schemas import PredictRequest, explain


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
        ('{"texts": ["a"], "top_k": "1"}', "top_k: expected a valid integer, found a string"),
        ('{"texts": ["a"], "top_k": 1.5}', "top_k: expected a valid integer, found a number"),
        ('{"texts": ["a"], "top_k": 0}', "top_k: expected greater than or equal to 1, found"),
    ],
)
def test_an_error_has_its_field_in_one_line(body: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PredictRequest.model_validate_json(body)
    error = explain(caught.value)
    assert error.startswith(message)
    assert "\n" not in error


def test_texts_and_inputs_become_examples() -> None:
    texts = PredictRequest.model_validate_json('{"texts": ["a", ""]}').examples()
    assert [(example.text, example.text_pair) for example in texts] == [("a", None), ("", None)]
    inputs = PredictRequest.model_validate_json('{"inputs": [{"text": "a", "text_pair": "b"}]}')
    assert [(example.text, example.text_pair) for example in inputs.examples()] == [("a", "b")]
