"""Requests are split in the same way wherever the data are cut."""

import sys

import pytest

from pipework.serve.http.request_parser import PARSED_BYTES, RequestHead, RequestParser, Unparsed

BODY = b'{"texts": []}'
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


class Receiver:
    """Stores the requests: head and body."""

    def __init__(self) -> None:
        self.requests: list[tuple[RequestHead, bytes]] = []
        self.body = b""

    def head_received(self, head: RequestHead) -> None:
        self.head, self.body = head, b""

    def body_received(self, data: bytes) -> None:
        self.body += data

    def body_ended(self) -> None:
        self.requests.append((self.head, self.body))


def parse(*parts: bytes) -> list[tuple[RequestHead, bytes]]:
    receiver = Receiver()
    parser = RequestParser(receiver)
    for part in parts:
        parser.feed(part)
    return receiver.requests


def post(headers: bytes = b"", body: bytes = BODY, target: bytes = b"/v1/predict?a=b") -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % (target, len(body))
    return head + headers + b"\r\n" + body


CHUNKED = (
    b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: t\r\nHost: b\r\n\r\n"
)


def test_a_head_has_its_parts() -> None:
    ((head, body),) = parse(post(b"X-A: 1\r\nX-A: 2\r\n", target=b"/v1/%70redict?a=b"))
    assert (head.method, head.path, head.query, body) == ("POST", "/v1/predict", b"a=b", BODY)
    assert head.headers[-2:] == [(b"x-a", b"1"), (b"x-a", b"2")]
    assert (head.fields[b"x-a"], head.keep_alive) == (b"2", True)


@pytest.mark.parametrize("data", [post() + post(), CHUNKED * 2, post(UPGRADE) + CHUNKED])
def test_requests_are_the_same_wherever_the_data_are_cut(data: bytes) -> None:
    whole = parse(data)
    assert len(whole) == 2
    for cut in range(1, len(data)):
        assert parse(data[:cut], data[cut:]) == whole
    assert parse(*(data[at : at + 1] for at in range(len(data)))) == whole


def test_trailers_are_no_headers() -> None:
    ((head, body),) = parse(CHUNKED)
    assert head.headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
    assert body == b"abcde"


def test_pipelined_upgrades_are_ignored_and_keep_their_bodies() -> None:
    inner = b"GET /secret HTTP/1.1\r\n\r\n"  # a body that looks like a request
    bodies = [BODY, inner, b"", BODY]
    found = parse(b"".join(post(UPGRADE, body) for body in bodies))
    assert [body for _, body in found] == bodies
    assert {head.path for head, _ in found} == {"/v1/predict"}
    assert all(b"upgrade" not in head.fields and head.keep_alive for head, _ in found)


@pytest.mark.parametrize(
    "headers",
    [
        b"Connection: close, Upgrade\r\n",
        b"Connection: Close\r\nConnection: Upgrade\r\n",
        b"Connection: Upgrade\r\nConnection: HTTP2-Settings, close\r\n",
    ],
)
def test_close_is_kept_when_an_upgrade_is_ignored(headers: bytes) -> None:
    ((head, _),) = parse(post(headers + b"Upgrade: h2c\r\n"))
    assert not head.keep_alive


FAULTS = {
    b"HTTP/1.1\r\n": (400, "expected one Host header, found none"),
    b"HTTP/1.1\r\nHost: a\r\nHost: a\r\n": (400, "expected one Host header, found 2"),
    b"HTTP/1.0\r\nHost: a\r\nHost: a\r\n": (400, "expected one Host header, found 2"),
    b"HTTP/2.0\r\nHost: a\r\n": (400, "expected HTTP/1.1, found HTTP/2.0"),
    b"HTTP/0.9\r\nHost: a\r\n": (400, "expected HTTP/1.1, found HTTP/0.9"),
    b"HTTP/1.0\r\nTransfer-Encoding: chunked\r\n": (
        400,
        "found a Transfer-Encoding, which HTTP/1.0 does not have",
    ),
    b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n": (
        501,
        "Transfer-Encoding: expected chunked, found 'gzip, chunked'",
    ),
    b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n": (
        501,
        "Transfer-Encoding: expected chunked, found 'gzip, chunked'",
    ),
}


@pytest.mark.parametrize(("head", "expected"), FAULTS.items())
def test_a_head_that_breaks_a_rule_of_http_has_a_fault(
    head: bytes, expected: tuple[int, str]
) -> None:
    chunks = b"1\r\na\r\n0\r\n\r\n" if b"chunked" in head else b""
    ((parsed, _),) = parse(b"POST / " + head + b"\r\n" + chunks)
    assert parsed.fault is not None
    assert (parsed.fault.http_status, str(parsed.fault)) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0\r\n",
        b"HTTP/1.1\r\nHost:\r\n",
        b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n",
    ],
)
def test_a_valid_head_has_no_fault(head: bytes) -> None:
    chunks = b"0\r\n\r\n" if b"Chunked" in head else b""
    ((parsed, _),) = parse(b"POST / " + head + b"\r\n" + chunks)
    assert parsed.fault is None


def test_an_http_1_0_request_with_an_upgrade_stays_one() -> None:
    sent = post(b"Connection: Upgrade\r\nUpgrade: h2c\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    ((head, body),) = parse(sent)
    assert (head.keep_alive, body) == (False, BODY)


def test_the_state_follows_the_data() -> None:
    parser = RequestParser(Receiver())
    sent = post()
    states = []
    for part in (sent[:20], sent[20:-5], sent[-5:]):
        parser.feed(part)
        states.append((parser.in_head, parser.in_body))
    assert states == [(True, False), (False, True), (False, False)]


def test_received_data_are_taken_in_parts_and_not_kept():
    data = bytes(range(256)) * 100
    references = sys.getrefcount(data)
    unparsed = Unparsed()
    unparsed.add(data)
    first = bytes(unparsed.take(in_body=False))
    unparsed.add(b"more")
    parts = [first]
    while unparsed:
        parts.append(bytes(unparsed.take(in_body=False)))
    assert b"".join(parts) == data + b"more"
    assert max(map(len, parts)) == PARSED_BYTES
    unparsed.add(data)
    while unparsed:
        unparsed.take(in_body=False)
    assert sys.getrefcount(data) == references
