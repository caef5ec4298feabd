"""Our own door is asked as it wants to be, and its answers are looked at."""

import base64
import json

import pytest

from pipework.benchmarks.load.outcome import first_answer
from pipework.benchmarks.targets import target
from pipework.data.examples import Example


def sent(request):
    head, _, body = request.partition(b"\r\n\r\n")
    return head.decode(), json.loads(body)


def test_texts_are_sent_as_texts_and_more_than_that_as_inputs():
    asked = target("http://127.0.0.1:1")
    head, body = sent(asked.request([Example(text="央行"), Example(text="b")]))
    assert head.startswith("POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")
    assert "Authorization" not in head
    assert body == {"texts": ["央行", "b"]}
    _, body = sent(asked.request([Example(text="a", text_pair="b")]))
    assert body == {"inputs": [{"text": "a", "text_pair": "b"}]}
    _, body = sent(asked.request([Example(text="a b", entities=((0, 1), (2, 3)))]))
    assert body == {"inputs": [{"text": "a b", "entities": [[0, 1], [2, 3]]}]}


def test_a_password_and_a_key_are_sent_and_not_shown(monkeypatch):
    asked = target("http://me:pass%20word@host:81/")
    assert asked.shown == "http://host:81"
    word = base64.b64encode(b"me:pass word").decode()
    assert f"Authorization: Basic {word}\r\n" in asked.request([Example(text="a")]).decode()
    monkeypatch.setenv("PIPEWORK_API_KEY", "secret")
    keyed = target("https://host")
    assert keyed.shown == "https://host:443"
    assert "Authorization: Bearer secret\r\n" in keyed.request([Example(text="a")]).decode()


@pytest.mark.parametrize("url", ["http://[::1]:8000", "http://[::1]:8000/"])
def test_an_address_of_the_newer_protocol_is_named_in_brackets(url):
    assert target(url).shown == "http://[::1]:8000"
    assert b"Host: [::1]:8000\r\n" in target(url).request([Example(text="a")])


def test_a_password_reaches_the_server(serve):
    server = serve()
    assert first_answer(target(server.url.replace("//", "//a:b@")), [Example(text="x")]).model
