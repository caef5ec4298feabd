"""A template defines the request format of other servers."""

import json

import pytest

from pipework.benchmarks.targets import target
from pipework.data.examples import Example
from pipework.errors import ConfigError, PipeError

URL = "http://127.0.0.1:1/classify?raw=1"


def body(template, *examples):
    return json.loads(target(URL, template).request(examples).partition(b"\r\n\r\n")[2])


def test_placeholders_are_replaced_and_the_rest_is_unchanged():
    two = Example(text='say "央行"'), Example(text="b")
    assert body('{"inputs": "$TEXTS", "top": 1, "$TEXTS": null}', *two) == {
        "inputs": ['say "央行"', "b"],
        "top": 1,
        "$TEXTS": None,
    }
    assert body('{"model": {"data": [{"text": "$TEXT"}]}}', Example(text="a")) == {
        "model": {"data": [{"text": "a"}]}
    }


def test_pairs_have_their_own_placeholders():
    pair = Example(text="a", text_pair="b")
    assert body('{"a": "$TEXTS", "b": "$TEXT_PAIRS"}', pair, pair) == {
        "a": ["a", "a"],
        "b": ["b", "b"],
    }
    assert body('[["$TEXT", "$TEXT_PAIR"]]', pair) == [["a", "b"]]


def test_a_template_for_one_text_is_refused_for_a_pair():
    with pytest.raises(ConfigError, match="has no placeholder for the second text of a pair"):
        body('{"inputs": "$TEXTS"}', Example(text="a", text_pair="b"))


def test_requests_are_sent_to_the_path_of_the_url():
    server_target = target(URL, '["$TEXT"]')
    assert server_target.request([Example(text="a")]).startswith(
        b"POST /classify?raw=1 HTTP/1.1\r\n"
    )
    assert server_target.display_url == URL


def test_a_response_must_have_a_list_of_the_requested_length():
    server_target = target(URL, '["$TEXTS"]')
    assert (
        server_target.check(b'{"model": "m", "data": [[{"score": 1}], [{"score": 2}]]}', 2) == "m"
    )
    assert server_target.check(b'[{"label": "a"}]', 1) == URL
    with pytest.raises(PipeError, match="expected a response with a list of 3"):
        server_target.check(b'{"data": [1, 2]}', 3)
    with pytest.raises(PipeError, match="expected a response with JSON"):
        server_target.check(b"<html>", 1)
