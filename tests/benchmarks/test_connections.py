"""Connections are used again, bounded, and say when they were lost."""

import asyncio

import pytest

from benchmarks.connections import ConnectionLostError, Connections, requests

PATH = "/v1/predict"


def ask(server, count, most=100):
    (request,) = requests(server.url, PATH, [b'{"texts": ["a"]}'])

    async def all_at_once():
        connections = Connections(server.url, most)
        try:
            asked = (connections.ask(request) for _ in range(count))
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            connections.close()

    return asyncio.run(all_at_once())


def test_a_request_is_what_a_server_understands(serve):
    server = serve()
    assert ask(server, 3) == [200] * 3
    assert server.bodies[0] == {"texts": ["a"]}


def test_no_more_connections_are_open_than_allowed(serve):
    server = serve(delay_s=0.02)
    assert ask(server, 12, most=3) == [200] * 12
    assert server.most_at_once == 3


def test_a_lost_connection_is_told_and_the_next_request_gets_another(serve):
    server = serve(behave=lambda number: -1 if number == 0 else 200)
    first, *others = ask(server, 4, most=1)
    assert isinstance(first, ConnectionLostError)
    assert others == [200] * 3


@pytest.mark.parametrize("status", [200, 429, 503])
def test_the_status_is_given(serve, status):
    assert ask(serve(behave=lambda _: status), 1) == [status]
