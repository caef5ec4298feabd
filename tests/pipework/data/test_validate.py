import pytest

from pipework.data.examples import Example, fitting
from pipework.errors import InputError
from pipework.run_folder.files import FileRecord
from pipework.run_folder.manifest import Input

FILE = FileRecord(path="tokenizer.json", sha256="", size=0)


def model(*fields):
    return Input(fields=fields, tokenizer=FILE, max_length=8, pad_id=0, type_ids=False)


TEXT, PAIR, ENTITIES = model("text"), model("text", "text_pair"), model("text", "entities")


def test_a_text_or_a_pair_stays_as_it_is():
    text, pair = Example(text="<e1>a</e1>"), Example(text="a", text_pair="b")
    assert fitting(text, TEXT, "input 1") is text
    assert fitting(pair, PAIR, "input 1") is pair


def test_marks_become_entities_for_a_model_that_wants_them():
    expected = Example(text="a b", entities=((0, 1), (2, 3)))
    assert fitting(Example(text="<e1>a</e1> <e2>b</e2>"), ENTITIES, "") == expected
    assert fitting(expected, ENTITIES, "") == expected


def test_with_spans_given_the_text_is_only_text():
    given = Example(text="<e1>a</e1>", entities=((4, 5), (0, 3)))
    assert fitting(given, ENTITIES, "") == given


@pytest.mark.parametrize(
    ("example", "given", "message"),
    [
        (Example(text="a"), PAIR, "expected a text and a text_pair"),
        (Example(text="a", text_pair="b"), TEXT, "found a text_pair"),
        (Example(text="a", text_pair="b"), ENTITIES, "found a text_pair"),
        (Example(text="a b", entities=((0, 1), (2, 3))), TEXT, "found entities"),
        (Example(text="a b"), ENTITIES, "expected <e1> once, found it 0 times"),
        (Example(text="a b", entities=((0, 1), (2, 4))), ENTITIES, "entity e2 is"),
    ],
)
def test_what_does_not_fit_is_told(example, given, message):
    with pytest.raises(InputError, match=f"input 1: {message}") as caught:
        fitting(example, given, "input 1")
    assert caught.value.hint
