"""Plain requests are answered as all others are, only sooner."""

import asyncio
import json
import logging
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from pipework.errors import NotReadyError
from pipework.scoring.predictions import Prediction, Value
from pipework.serve.app import build_app
from pipework.serve.config import LimitSettings, ServeSettings
from pipework.serve.http.admission import Admission
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.fast_path import SMALL, Plain
from pipework.serve.http.uvicorn_protocol import bounded_protocol
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Watch
from pipework.serve.request.context import Observed, current
from pipework.serve.request.timings import Stages, Timed
from pipework.serve.scheduling.predictor import Predictor

KEY = "first-key-0123456789"
ASKED = b'{"texts": ["goal", "rain sun"]}'
HEAD = "POST {} HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["goal"]}
INFER = json.dumps({"inputs": [TENSOR]}).encode()
TIMEOUT_S = 60


class Wire(asyncio.Transport):
    """A connection in memory: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False
        self.changed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        self.changed.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.changed.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Door:
    """The server's connections in memory, which count what goes the short way.

    Attributes:
        short: requests that were answered there.
        seen: what was observed of all.
    """

    def __init__(self, models: Models, keys: ApiKeys, limits: LimitSettings | None = None) -> None:
        self.short = 0
        self.seen: list[Observed] = []
        settings = ServeSettings(limits=limits or LimitSettings())
        watch = Watch(models)
        inner = watch.finish

        def finish(observed: Observed) -> None:
            inner(observed)
            self.seen.append(observed)

        watch.finish = finish  # type: ignore[method-assign]
        app = build_app(models, settings, keys, watch)
        self.plain = Plain(app.state.asking, watch, settings.limits.body_bytes)
        answer = self.plain.answer

        async def counted(*given: Any) -> None:
            self.short += 1
            await answer(*given)

        self.plain.answer = counted  # type: ignore[method-assign]
        kind = bounded_protocol(settings.limits, Admission(models, keys, watch), self.plain)
        config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None)
        config.load()
        self.state = ServerState()
        self._connection = lambda: kind(config=config, server_state=self.state, app_state={})

    def connect(self) -> tuple[Any, Wire]:
        opened, wire = self._connection(), Wire()
        opened.connection_made(wire)
        return opened, wire

    async def ask(self, *parts: bytes, answers: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
        """Send parts, each with what the loop has to do after it; return the answers."""
        opened, wire = self.connect()
        for part in parts:
            opened.data_received(part)
            await asyncio.sleep(0)
        while len(found := parsed(wire.written)) < answers:
            wire.changed.clear()
            await asyncio.wait_for(wire.changed.wait(), TIMEOUT_S)
        opened.connection_lost(None)
        return found


def parsed(data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Return whole answers: status, headers (of each name the last) and body."""
    found = []
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        if head.endswith(b" 100 Continue"):
            data = rest
            continue
        first, *lines = head.decode().lower().split("\r\n")
        names = [line.split(": ", 1)[0] for line in lines]
        assert len(names) == len({*names}), names
        headers = dict(line.split(": ", 1) for line in lines)
        size = int(headers["content-length"])
        if len(rest) < size:
            break
        found.append((int(first.split()[1]), headers, rest[:size]))
        data = rest[size:]
    return found


def request(
    body: bytes = ASKED, url: str = "/v1/predict", *headers: str, length: bool = True
) -> bytes:
    lines = [*headers, f"Content-Length: {len(body)}"] if length else headers
    return (HEAD.format(url) + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode() + body


def chunked(body: bytes, url: str = "/v1/predict") -> bytes:
    packed = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    return request(packed, url, "Transfer-Encoding: chunked", length=False)


@pytest.fixture(scope="module")
def predictor(run: Path):
    with Predictor(run) as predictor:
        yield predictor


def ask(
    predictor: Predictor, *parts: bytes, keys: Sequence[str] = (), answers: int = 1
) -> tuple[Door, list[tuple[int, dict[str, str], bytes]]]:
    door = Door(Models([predictor]), ApiKeys(keys))
    return door, asyncio.run(door.ask(*parts, answers=answers))


@pytest.mark.parametrize(
    ("url", "body", "status"),
    [
        ("/v1/predict", ASKED, 200),
        ("/v1/predict", b"", 400),
        ("/v1/predict", b"{", 400),
        ("/v1/predict", b'{"texts": []}', 422),
        ("/v1/predict", b'{"texts": ["a"], "model": "other"}', 404),
        ("/v1/predict", b'{"inputs": [{"text": "a", "text_pair": "b"}]}', 422),
        ("/v2/models/topics/infer", INFER, 200),
        ("/v2/models/topics/infer", b"{}", 400),
    ],
)
def test_the_short_way_answers_as_the_long_one(
    predictor: Predictor, url: str, body: bytes, status: int
) -> None:
    url = url.replace("topics", predictor.name)
    short, (brief,) = ask(predictor, request(body, url))
    long, (lengthy,) = ask(predictor, chunked(body, url))
    assert (short.short, long.short) == (1, 0)
    assert brief[0] == lengthy[0] == status
    assert brief[1].keys() == lengthy[1].keys()
    same = brief[1].keys() - {"date", "server-timing"}
    assert {name: brief[1][name] for name in same} == {name: lengthy[1][name] for name in same}
    assert brief[1]["x-request-id"] == "mine"
    assert brief[2] == lengthy[2]
    (a,), (b,) = short.seen, long.seen
    assert (a.door, a.id, a.status, a.texts) == (b.door, b.id, b.status, b.texts)
    assert (a.model, a.version, a.answered) == (b.model, b.version, b.answered)
    assert a.status == str(status)


PACKED = zlib.compress(ASKED)


@pytest.mark.parametrize(
    ("parts", "short"),
    [
        ([request()], 1),
        ([request()[:40], request()[40:]], 1),
        ([request()[: -len(ASKED)], ASKED[:5], ASKED[5:]], 1),
        ([request(ASKED, "/v1/predict", "Accept-Encoding: gzip")], 1),
        ([request(ASKED, "/v1/predict", "Upgrade: h2c", "Connection: Upgrade")], 1),
        ([request(ASKED, "/v1/predict", "Expect: 100-continue")], 0),
        ([request(ASKED, "/v1/predict?a=b")], 0),
        ([request(ASKED, "/v1/%70redict")], 0),
        ([request(PACKED, "/v1/predict", "Content-Encoding: deflate")], 0),
        ([request(ASKED, "/v1/predict", "Connection: close")], 0),
        ([request().replace(b"HTTP/1.1", b"HTTP/1.0")], 0),
        ([request(ASKED.ljust(SMALL))], 1),
        ([request(ASKED.ljust(SMALL + 1))], 0),
    ],
)
def test_what_is_plain_goes_the_short_way_and_all_is_answered(
    predictor: Predictor, parts: list[bytes], short: int
) -> None:
    door, found = ask(predictor, *parts)
    (status, _, body) = found[-1]
    assert status == 200, body
    assert [one["label"] for one in json.loads(body)["predictions"]] == ["sport", "weather"]
    assert door.short == short
    assert [one.status for one in door.seen] == ["200"]


@pytest.mark.parametrize(("headers", "short"), [((), 1), (("Accept-Encoding: gzip;q=0.5",), 0)])
def test_an_answer_that_may_be_compressed_goes_the_long_way(
    predictor: Predictor, headers: tuple[str, ...], short: int
) -> None:
    url = f"/v2/models/{predictor.name}/infer"
    door, ((status, _, _),) = ask(predictor, request(INFER, url, *headers))
    assert (status, door.short) == (200, short)


def test_a_key_is_asked_for(predictor: Predictor) -> None:
    door, ((status, _, _),) = ask(predictor, request(), keys=[KEY])
    assert (status, door.short) == (401, 0)
    held = request(ASKED, "/v1/predict", f"Authorization: Bearer {KEY}")
    door, ((status, _, _),) = ask(predictor, held, keys=[KEY])
    assert (status, door.short) == (200, 1)


def test_requests_behind_one_another_are_answered_in_their_order(predictor: Predictor) -> None:
    bodies = [json.dumps({"texts": [text]}).encode() for text in ("goal", "rain", "bank")]
    door, found = ask(predictor, b"".join(map(request, bodies)), answers=3)
    labels = [json.loads(body)["predictions"][0]["label"] for _, _, body in found]
    assert labels == ["sport", "weather", "money"]
    assert len(door.seen) == 3


def test_a_bug_is_answered_500_and_logged(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(predictor, "predict", broken)
    with caplog.at_level(logging.ERROR):
        door, ((status, headers, body),) = ask(predictor, request())
    assert (status, door.short) == (500, 1)
    assert json.loads(body)["error"].startswith("internal error")
    assert headers["x-request-id"] == "mine"
    assert "ZeroDivisionError" in caplog.text
    assert [one.status for one in door.seen] == ["500"]


class PanicError(BaseException):
    """As what a library in Rust panics with, no Exception."""


def test_a_panic_is_answered_500_and_one_that_cannot_be_sent_ends_the_connection(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(*_: object) -> None:
        raise PanicError

    with monkeypatch.context() as patched:
        patched.setattr("pipework.serve.http.rest.parse_request", panics)
        door, ((status, _, _),) = ask(predictor, request())
    assert (status, door.short) == (500, 1)
    assert [one.status for one in door.seen] == ["500"]
    monkeypatch.setattr("pipework.serve.http.uvicorn_protocol._head", panics)

    async def lost() -> bool:
        opened, wire = door.connect()
        opened.data_received(request())
        await asyncio.wait({*door.state.tasks})
        await asyncio.sleep(0)
        return wire.closing

    door = Door(Models([predictor]), ApiKeys(()))
    assert asyncio.run(lost())
    assert [one.status for one in door.seen] == ["200"]


def test_the_answers_of_a_batch_are_sent_when_all_of_them_are_there(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(Models([predictor]), ApiKeys(()))
    happened: list[str] = []
    wires: list[Wire] = []

    async def predict(*_: object) -> Timed[list[Prediction]]:
        await go.wait()
        happened.append(f"decided {sum(map(len, (one.written for one in wires)))}")
        return Timed(value=[Value(score=1.0)], stages=Stages())

    async def both() -> None:
        for _ in range(2):
            opened, wire = door.connect()
            wires.append(wire)
            opened.data_received(request())
        await asyncio.sleep(0.01)
        go.set()
        for wire in wires:
            await asyncio.wait_for(wire.changed.wait(), TIMEOUT_S)

    go = asyncio.Event()
    monkeypatch.setattr(predictor, "predict", predict)
    asyncio.run(both())
    assert happened == ["decided 0", "decided 0"]
    assert [one.status for one in door.seen] == ["200", "200"]


def test_what_fails_at_the_end_of_a_turn_is_logged_as_its_own_request(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(Models([predictor]), ApiKeys(()))
    ids: list[str] = []

    def lose(*_: object) -> bool:
        observed = current()
        assert observed is not None
        ids.append(observed.id)
        raise PanicError

    async def predict(*_: object) -> Timed[list[Prediction]]:
        await go.wait()
        return Timed(value=[Value(score=1.0)], stages=Stages())

    async def both() -> list[bool]:
        wires = []
        for name in (b"one", b"two"):
            opened, wire = door.connect()
            opened.data_received(request().replace(b"mine", name))
            wires.append(wire)
        await asyncio.sleep(0.01)
        go.set()
        for wire in wires:
            await asyncio.wait_for(wire.changed.wait(), TIMEOUT_S)
        return [wire.closing for wire in wires]

    go = asyncio.Event()
    monkeypatch.setattr(predictor, "predict", predict)
    monkeypatch.setattr("pipework.serve.http.write_buffer.Corked.write_all", lose)
    assert asyncio.run(both()) == [True, True]
    assert sorted(ids) == ["one", "two"]
    assert "PanicError" in caplog.text


def test_who_hangs_up_between_answer_and_sending_is_seen_as_gone(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(Models([predictor]), ApiKeys(()))
    opened: list[Any] = []

    async def predict(*_: object) -> Timed[list[Prediction]]:
        asyncio.get_running_loop().call_soon(opened[0].connection_lost, None)
        return Timed(value=[Value(score=1.0)], stages=Stages())

    async def hang_up() -> bytes:
        one, wire = door.connect()
        opened.append(one)
        one.data_received(request())
        await asyncio.wait({*door.state.tasks})
        await asyncio.sleep(0.01)
        return wire.written

    monkeypatch.setattr(predictor, "predict", predict)
    assert asyncio.run(hang_up()) == b""
    assert [one.status for one in door.seen] == ["499"]


def test_what_ends_before_it_begins_ends_its_connection(predictor: Predictor) -> None:
    door = Door(Models([predictor]), ApiKeys(()))

    async def end() -> bool:
        opened, wire = door.connect()
        opened.data_received(request())
        (task,) = door.state.tasks
        task.cancel()
        await asyncio.wait({task})
        return wire.closing

    assert asyncio.run(end())


def test_what_goes_wrong_with_an_error_is_logged(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    door = Door(Models([predictor]), ApiKeys(()))
    monkeypatch.setattr("pipework.serve.http.direct_routes.Asking.answer", broken)
    monkeypatch.setattr("pipework.serve.http.fast_path.failure", broken)

    async def lost() -> bool:
        opened, wire = door.connect()
        opened.data_received(request())
        await asyncio.wait({*door.state.tasks})
        return wire.closing

    assert asyncio.run(lost())
    logged = [one.name for one in caplog.records if one.exc_info]
    assert logged == ["pipework.serve.http.fast_path", "pipework.serve.http.uvicorn_protocol"]


@pytest.mark.parametrize("sent", [request(), request()[:-5]], ids=["whole", "half"])
def test_who_hangs_up_is_seen(predictor: Predictor, sent: bytes) -> None:
    door = Door(Models([predictor]), ApiKeys(()))

    async def hang_up() -> None:
        opened, wire = door.connect()
        opened.data_received(sent)
        opened.connection_lost(ConnectionResetError())
        await asyncio.wait({*door.state.tasks})
        assert wire.written == b""

    asyncio.run(asyncio.wait_for(hang_up(), TIMEOUT_S))
    assert [one.status for one in door.seen] == ["499"]


def test_a_body_that_does_not_come_is_told_and_seen(predictor: Predictor) -> None:
    limits = LimitSettings(body_s=0.05)
    door = Door(Models([predictor]), ApiKeys(()), limits)
    (status, _, body), *_ = asyncio.run(door.ask(request()[:-5]))
    assert status == 408
    assert b"the body of the request did not come within 0.05 s" in body
    assert [one.status for one in door.seen] == ["499"]


@pytest.mark.parametrize("cut", [0, 5])
def test_what_has_begun_is_answered_when_the_server_stops(predictor: Predictor, cut: int) -> None:
    door = Door(Models([predictor]), ApiKeys(()))
    sent = request()

    async def stop() -> list[tuple[int, dict[str, str], bytes]]:
        opened, wire = door.connect()
        opened.data_received(sent[: len(sent) - cut])
        opened.shutdown()
        assert not wire.closing
        if cut:
            opened.data_received(sent[-cut:])
        while not wire.closing:
            wire.changed.clear()
            await asyncio.wait_for(wire.changed.wait(), TIMEOUT_S)
        return parsed(wire.written)

    ((status, headers, _),) = asyncio.run(stop())
    assert (status, headers["connection"]) == (200, "close")


def test_what_is_cancelled_at_the_end_is_told_why(predictor: Predictor) -> None:
    door = Door(Models([predictor]), ApiKeys(()))

    async def end() -> list[tuple[int, dict[str, str], bytes]]:
        opened, wire = door.connect()
        opened.data_received(request())
        await asyncio.sleep(0)
        for task in door.state.tasks:
            task.cancel()
        await asyncio.wait({*door.state.tasks})
        return parsed(wire.written)

    ((status, _, body),) = asyncio.run(end())
    assert status == NotReadyError.http_status
    assert b"the server stopped before the request was answered" in body


def test_a_server_answers_the_same_in_one_piece_and_in_two(server: Any) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    found = []
    for cuts in ((), (-len(ASKED),), (-3,)):
        with socket.create_connection((host, int(port)), TIMEOUT_S) as opened:
            sent, start = request(), 0
            for cut in (*cuts, None):
                opened.sendall(sent[start:cut])
                start = cut or 0
            data = b""
            while not parsed(data):
                data += opened.recv(65536)
            found.append(parsed(data)[0][2])
    found.append(httpx.post(f"{server.url}/v1/predict", content=ASKED).content)
    assert len({*found}) == 1
