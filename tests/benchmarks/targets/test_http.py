"""Calls over HTTP: what counts as an error."""

import asyncio
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pipework.benchmarks.targets import target
from pipework.data.examples import Example
from pipework.errors import PipeError

EXAMPLES = [Example(text="rain")]


@pytest.fixture
def refusing():
    """A server whose second response is an error."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        answered = 0

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            Handler.answered += 1
            body = b'{"error": "because\\n of it"}'
            self.send_response(422 if Handler.answered == 2 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield target(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def call(server_target, use):
    """Run `use(caller, request)` with one connection."""

    async def within():
        caller = server_target.open(1)
        try:
            return await use(caller, server_target.request(EXAMPLES))
        finally:
            await caller.close()

    return asyncio.run(within())


def test_the_first_response_is_returned_or_its_refusal_raised(refusing):
    async def use(caller, request):
        first = await caller.fetch(request)
        with pytest.raises(PipeError, match=r"HTTP 422: because of it$") as caught:
            await caller.fetch(request)
        return first, caught.value

    first, error = call(refusing, use)
    assert first.startswith(b"{")
    assert f"{refusing.display_url}/v1/predict" in str(error)
    assert "--file" in error.hint


def test_a_dropped_connection_is_an_error_and_the_next_request_succeeds(serve):
    server = serve(behave=lambda number: -1 if number == 0 else 200)

    async def use(caller, request):
        return [await caller.send(request) for _ in range(2)]

    assert call(target(server.url), use) == ["connection dropped", None]


def test_an_absent_server_is_an_error_without_details(closed_port):
    absent = target(f"http://127.0.0.1:{closed_port}")

    async def use(caller, request):
        with pytest.raises(PipeError, match="no connection"):
            await caller.fetch(request)
        return await caller.send(request)

    assert call(absent, use) == "no connection"
