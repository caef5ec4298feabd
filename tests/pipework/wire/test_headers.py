"""The headers that a client sends are the headers that the server reads."""

import time

import httpx
import pytest

from pipework.client.address import MAX_TIMEOUT_S, ClientOptions, HttpConnection
from pipework.serve.request.context import RequestOptions, read_options


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("timeout_s", [0.25, MAX_TIMEOUT_S])
def test_the_server_reads_the_options_that_the_client_sends(monkeypatch, timeout_s, bulk):
    received = []

    def answer(request):
        received.append({name.lower(): value for name, value in request.headers.raw})
        return httpx.Response(200)

    options = ClientOptions(timeout_s=timeout_s, bulk=bulk)
    with HttpConnection("http://fake", options, httpx.MockTransport(answer)) as connection:
        connection.get("/")
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    (fields,) = received
    assert read_options(fields) == RequestOptions(deadline_s=100.0 + timeout_s, bulk=bulk)
