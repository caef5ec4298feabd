"""Connections are used again, bounded, and say when they were lost."""

import asyncio
import socket
import threading

import pytest

from pipework.benchmarks.targets.http_connections import (
    ConnectionLostError,
    Connections,
    Reply,
    request,
)

JSON = {"Content-Type": "application/json"}


def ask(port, count, most=100):
    asked = request("127.0.0.1", "/v1/predict", b'{"texts": ["a"]}', JSON)

    async def all_at_once():
        connections = Connections("127.0.0.1", port, None, most)
        try:
            return await asyncio.gather(
                *(connections.ask(asked) for _ in range(count)), return_exceptions=True
            )
        finally:
            connections.close()

    found = asyncio.run(all_at_once())
    return [one.status if isinstance(one, Reply) else one for one in found]


def test_a_request_is_what_a_server_understands(serve):
    server = serve()
    assert ask(server.port, 3) == [200] * 3
    assert server.bodies[0] == {"texts": ["a"]}


def test_no_more_connections_are_open_than_allowed(serve):
    server = serve(delay_s=0.02)
    assert ask(server.port, 12, most=3) == [200] * 12
    assert server.most_at_once == 3


def test_a_lost_connection_is_told_and_the_next_request_gets_another(serve):
    server = serve(behave=lambda number: -1 if number == 0 else 200)
    first, *others = ask(server.port, 4, most=1)
    assert isinstance(first, ConnectionLostError)
    assert others == [200] * 3


@pytest.mark.parametrize("status", [200, 429, 503])
def test_the_status_is_given(serve, status):
    assert ask(serve(behave=lambda _: status).port, 1) == [status]


def raw(answer):
    """A server on a socket that answers one connection with these bytes and hangs up; its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(answer)

    threading.Thread(target=serve).start()
    return listening.getsockname()[1]


def test_an_answer_that_does_not_say_its_length_ends_with_its_connection():
    assert ask(raw(b"HTTP/1.1 200 OK\r\n\r\nall of it"), 1) == [200]


def test_an_answer_that_is_cut_off_is_a_lost_connection():
    (found,) = ask(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nnot all"), 1)
    assert isinstance(found, ConnectionLostError)


def test_what_is_no_http_is_a_lost_connection():
    (found,) = ask(raw(b"220 mail.example ESMTP\r\n"), 1)
    assert isinstance(found, ConnectionLostError)
