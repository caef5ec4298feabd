"""Requests to `pipe serve` have the correct format and credentials."""

import base64
import json

import pytest

from pipework.benchmarks.targets import target
from pipework.data.examples import Example


def sent(request):
    head, _, body = request.partition(b"\r\n\r\n")
    return head.decode(), json.loads(body)


def test_texts_are_sent_as_texts_and_pairs_and_entities_as_inputs():
    server_target = target("http://127.0.0.1:1")
    head, body = sent(server_target.request([Example(text="央行"), Example(text="b")]))
    assert head.startswith("POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")
    assert "Authorization" not in head
    assert body == {"texts": ["央行", "b"]}
    _, body = sent(server_target.request([Example(text="a", text_pair="b")]))
    assert body == {"inputs": [{"text": "a", "text_pair": "b"}]}
    _, body = sent(server_target.request([Example(text="a b", entities=((0, 1), (2, 3)))]))
    assert body == {"inputs": [{"text": "a b", "entities": [[0, 1], [2, 3]]}]}


def test_passwords_and_api_keys_are_sent_but_not_displayed(monkeypatch):
    monkeypatch.setenv("PIPEWORK_API_KEY", "secret")  # not sent with a password
    server_target = target("http://me:pass%20word@host:81/")
    assert server_target.display_url == "http://host:81"
    credentials = base64.b64encode(b"me:pass word").decode()
    assert (
        f"Authorization: Basic {credentials}\r\n"
        in server_target.request([Example(text="a")]).decode()
    )
    key_target = target("https://host")
    assert key_target.display_url == "https://host:443"
    assert "Authorization: Bearer secret\r\n" in key_target.request([Example(text="a")]).decode()


@pytest.mark.parametrize("url", ["http://[::1]:8000", "http://[::1]:8000/"])
def test_an_ipv6_address_has_brackets(url):
    assert target(url).display_url == "http://[::1]:8000"
    assert b"Host: [::1]:8000\r\n" in target(url).request([Example(text="a")])
