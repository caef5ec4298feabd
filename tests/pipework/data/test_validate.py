import pytest

from pipework.data.examples import Example, validate_example
from pipework.errors import InputError
from pipework.run_folder.files import FileRecord
from pipework.run_folder.manifest import Input

FILE = FileRecord(path="tokenizer.json", sha256="", size=0)


def model(*fields):
    return Input(fields=fields, tokenizer=FILE, max_length=8, pad_id=0, type_ids=False)


TEXT, PAIR, ENTITIES = model("text"), model("text", "text_pair"), model("text", "entities")


def test_a_text_or_a_pair_is_returned_unchanged():
    text, pair = Example(text="<e1>a</e1>"), Example(text="a", text_pair="b")
    assert validate_example(text, TEXT, "input 1") is text
    assert validate_example(pair, PAIR, "input 1") is pair


def test_tags_are_parsed_for_a_model_with_entities():
    expected = Example(text="a b", entities=((0, 1), (2, 3)))
    assert validate_example(Example(text="<e1>a</e1> <e2>b</e2>"), ENTITIES, "") == expected
    assert validate_example(expected, ENTITIES, "") == expected


def test_tags_are_text_if_spans_are_given():
    example = Example(text="<e1>a</e1>", entities=((4, 5), (0, 3)))
    assert validate_example(example, ENTITIES, "") == example


@pytest.mark.parametrize(
    ("example", "expected", "message"),
    [
        (Example(text="a"), PAIR, "expected a text and a text_pair"),
        (Example(text="a", text_pair="b"), TEXT, "found a text_pair"),
        (Example(text="a", text_pair="b"), ENTITIES, "found a text_pair"),
        (Example(text="a b", entities=((0, 1), (2, 3))), TEXT, "found entities"),
        (Example(text="a b"), ENTITIES, "expected <e1> once, found it 0 times"),
        (Example(text="a b", entities=((0, 1), (2, 4))), ENTITIES, "entity e2 is"),
    ],
)
def test_an_example_that_does_not_match_the_input_is_rejected(example, expected, message):
    with pytest.raises(InputError, match=f"input 1: {message}") as caught:
        validate_example(example, expected, "input 1")
    assert caught.value.hint
