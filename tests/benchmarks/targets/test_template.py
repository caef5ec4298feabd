"""A template says what a server of another kind wants to hear."""

import json

import pytest

from pipework.benchmarks.targets import target
from pipework.data.examples import Example
from pipework.errors import ConfigError, PipeError

URL = "http://127.0.0.1:1/classify?raw=1"


def body(template, *examples):
    return json.loads(target(URL, template).request(examples).partition(b"\r\n\r\n")[2])


def test_texts_take_their_places_and_the_rest_stays():
    two = Example(text='say "央行"'), Example(text="b")
    assert body('{"inputs": "$TEXTS", "top": 1, "$TEXTS": null}', *two) == {
        "inputs": ['say "央行"', "b"],
        "top": 1,
        "$TEXTS": None,
    }
    assert body('{"model": {"data": [{"text": "$TEXT"}]}}', Example(text="a")) == {
        "model": {"data": [{"text": "a"}]}
    }


def test_pairs_have_places_of_their_own():
    pair = Example(text="a", text_pair="b")
    assert body('{"a": "$TEXTS", "b": "$TEXT_PAIRS"}', pair, pair) == {
        "a": ["a", "a"],
        "b": ["b", "b"],
    }
    assert body('[["$TEXT", "$TEXT_PAIR"]]', pair) == [["a", "b"]]


@pytest.mark.parametrize(
    ("template", "count", "said"),
    [
        ("{inputs}", 1, "is not JSON"),
        ('{"inputs": "TEXTS"}', 1, "has no place for texts"),
        ('{"inputs": "$TEXT"}', 2, "has a place for one text, found 2"),
        ('{"inputs": "$TEXTS"}', -1, "has no place for the second text of a pair"),
    ],
)
def test_a_template_that_cannot_be_filled_is_told(template, count, said):
    pair = "b" if count < 0 else None
    with pytest.raises(ConfigError, match=said.replace("$", "\\$")):
        body(template, *[Example(text="a", text_pair=pair)] * abs(count))


def test_it_is_sent_to_its_path():
    asked = target(URL, '["$TEXT"]')
    assert asked.request([Example(text="a")]).startswith(b"POST /classify?raw=1 HTTP/1.1\r\n")
    assert asked.shown == URL


def test_an_answer_holds_a_list_of_as_many():
    asked = target(URL, '["$TEXTS"]')
    assert asked.check(b'{"model": "m", "data": [[{"score": 1}], [{"score": 2}]]}', 2) == "m"
    assert asked.check(b'[{"label": "a"}]', 1) == URL
    with pytest.raises(PipeError, match="not with the list of 3 expected"):
        asked.check(b'{"data": [1, 2]}', 3)
    with pytest.raises(PipeError, match="not with the JSON expected"):
        asked.check(b"<html>", 1)
