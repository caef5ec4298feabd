import asyncio

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from pipework.serve.http.asgi import call_app
from pipework.serve.http.request_parser import RequestHead

app = FastAPI()


@app.post("/echo")
async def echo(request: Request, name: str) -> dict[str, str]:
    return {"name": name, "body": (await request.body()).decode()}


@app.get("/parts")
async def parts() -> StreamingResponse:
    return StreamingResponse(iter(["a", "b"]), headers={"x-own": "1"})


@app.get("/file")
async def file() -> FileResponse:
    return FileResponse(__file__)


@app.get("/nothing")
async def nothing() -> Response:
    return Response(status_code=204)


def call(method: str, path: str, query: bytes = b"", body: bytes = b"") -> Response:
    head = RequestHead(method=method, path=path, query=query)
    return asyncio.run(asyncio.wait_for(call_app(app, head, body), 30))


def test_the_app_gets_the_query_and_the_body() -> None:
    response = call("POST", "/echo", b"name=%C3%A9", b"text")
    assert (response.status_code, bytes(response.body)) == (
        200,
        '{"name":"é","body":"text"}'.encode(),
    )


def test_a_streamed_response_is_collected_and_gets_a_length() -> None:
    response = call("GET", "/parts")
    assert (bytes(response.body), response.headers["x-own"]) == (b"ab", "1")
    assert response.headers["content-length"] == "2"
    assert len(call("GET", "/file").body) > 1000


def test_a_response_without_a_body_has_no_length() -> None:
    assert "content-length" not in call("GET", "/nothing").headers


def test_head_gets_the_response_to_get() -> None:
    response, expected = call("HEAD", "/parts"), call("GET", "/parts")
    assert response.status_code == 200
    assert response.raw_headers == expected.raw_headers


def test_an_app_that_sends_nothing_is_an_error() -> None:
    async def silent(*_: object) -> None:
        pass

    with pytest.raises(RuntimeError, match="no response to GET /a"):
        asyncio.run(call_app(silent, RequestHead(method="GET", path="/a"), b""))
