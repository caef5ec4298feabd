"""Connections are reused, limited in number, and their loss is reported."""

import asyncio
import socket
import threading

import pytest

from pipework.benchmarks.targets.http_connections import (
    ConnectionLostError,
    ConnectionPool,
    HttpResponse,
    post_request,
)

JSON = {"Content-Type": "application/json"}


def send(port, count, max_connections=100):
    content = post_request("127.0.0.1", "/v1/predict", b'{"texts": ["a"]}', JSON)

    async def all_at_once():
        connections = ConnectionPool("127.0.0.1", port, None, max_connections)
        try:
            return await asyncio.gather(
                *(connections.send(content) for _ in range(count)), return_exceptions=True
            )
        finally:
            connections.close()

    results = asyncio.run(all_at_once())
    return [result.status if isinstance(result, HttpResponse) else result for result in results]


def test_requests_are_valid_http(serve):
    server = serve()
    assert send(server.port, 3) == [200] * 3
    assert server.bodies[0] == {"texts": ["a"]}


def test_no_more_connections_are_open_than_allowed(serve):
    server = serve(delay_s=0.02)
    assert send(server.port, 12, max_connections=3) == [200] * 12
    assert server.most_at_once == 3


def test_a_lost_connection_is_reported_and_replaced(serve):
    server = serve(behave=lambda number: -1 if number == 0 else 200)
    first, *others = send(server.port, 4, max_connections=1)
    assert isinstance(first, ConnectionLostError)
    assert others == [200] * 3


@pytest.mark.parametrize("status", [200, 429, 503])
def test_the_status_is_returned(serve, status):
    assert send(serve(behave=lambda _: status).port, 1) == [status]


def raw_server(response):
    """Return the port of a server that sends these bytes on one connection and closes it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(response)

    threading.Thread(target=serve).start()
    return listening.getsockname()[1]


def test_a_response_without_length_ends_with_its_connection():
    assert send(raw_server(b"HTTP/1.1 200 OK\r\n\r\nall of it"), 1) == [200]


def test_a_truncated_response_is_a_lost_connection():
    (error,) = send(raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nnot all"), 1)
    assert isinstance(error, ConnectionLostError)


def test_a_response_that_is_not_http_is_a_lost_connection():
    (error,) = send(raw_server(b"220 mail.example ESMTP\r\n"), 1)
    assert isinstance(error, ConnectionLostError)
