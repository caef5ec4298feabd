"""Answers of a foreign server, which may be of any shape."""

import json

import httpx
import pytest

from pipework.client.address import ClientOptions, HttpConnection, ServerUrl
from pipework.client.http import HttpTransport, model_path
from pipework.errors import PipeError
from pipework.tasks.predictions import SingleLabel
from pipework.wire.schemas import PredictRequest

METADATA = {
    "inputs": [{"name": "text", "shape": [-1, 1]}],
    "outputs": [{"name": name, "shape": []} for name in ("label", "score", "probabilities")],
}


def door(shape, data):
    """Return a transport to a server with these probabilities for a text."""

    def answer(request):
        if request.method == "GET":
            return httpx.Response(200, json=METADATA)
        if "classification" in request.content.decode():
            words = {"name": "probabilities", "shape": [2], "data": ["0.75:1:sun", "0.25:0:rain"]}
            return httpx.Response(200, json={"model_version": "1", "outputs": [words]})
        outputs = [
            {"name": "label", "shape": [1, 1], "data": ["sun"]},
            {"name": "score", "shape": [1, 1], "data": [0.75]},
            {"name": "probabilities", "shape": shape, "data": data},
        ]
        return httpx.Response(200, content=json.dumps({"model_version": "1", "outputs": outputs}))

    web = HttpConnection("http://fake", ClientOptions(timeout_s=1), httpx.MockTransport(answer))
    return HttpTransport(web, ServerUrl.of("http://fake/v2/models/m"))


def test_tensors_become_predictions():
    with door([1, 2], [0.25, 0.75]) as transport:
        found = transport.predict(PredictRequest(texts=["a"]))
    assert found == [SingleLabel(label="sun", score=0.75, scores={"sun": 0.75, "rain": 0.25})]


@pytest.mark.parametrize(
    ("shape", "data"),
    [([], [0.5]), ([2], [0.25, 0.75]), ([1, 3], [0.25, 0.75]), ([0, 2], []), ([1, 1], ["x"])],
)
def test_tensors_of_a_wrong_shape_are_reported_in_one_line(shape, data):
    with door(shape, data) as transport, pytest.raises(PipeError, match="cannot be read") as caught:
        transport.predict(PredictRequest(texts=["a"]))
    assert "\n" not in str(caught.value)


def test_names_are_quoted_in_the_path():
    assert model_path("a/b c", "") == "/v2/models/a%2Fb%20c"
    assert model_path("m", "3") == "/v2/models/m/versions/3"
