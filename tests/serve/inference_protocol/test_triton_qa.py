"""Cases of Triton's own tests (`qa/L0_*` of its repository), adapted to models of texts.

The other cases are in `tests/end_to_end/test_two_servers.py`, where a real tritonserver gets the
same requests.
"""

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.serve.protocol_clients import (
    CLIENTS,
    HTTP,
    ServerAddress,
    as_json,
    call,
    requested_output,
    tensor,
    texts_of,
)

# tritonclient.http.aio does not read responses if it needs only their status.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
MODEL = "topics"
OUTPUTS = ("label", "score", "probabilities", "logits")
LENGTH = "Inference-Header-Content-Length"
REFUSED = {"400", "StatusCode.INVALID_ARGUMENT"}
UNKNOWN = {"404", "StatusCode.NOT_FOUND"}
NOT_ANNOUNCED = {"404", "StatusCode.UNIMPLEMENTED"}
EXPIRED = {"504", "StatusCode.DEADLINE_EXCEEDED"}


def address_of(server):
    return ServerAddress(http=server.url.removeprefix("http://"), grpc=server.grpc)


@pytest.fixture(scope="module")
def address(server):
    return address_of(server)


@pytest.fixture(scope="module")
def pair_address(pair_run, start_server):
    return address_of(start_server(pair_run))


@pytest.fixture(params=CLIENTS)
def protocol(request):
    return request.param


def refused(status, address, protocol, method, *arguments, **options):
    """Return the message of an error with one of these statuses; the server stays healthy."""
    with pytest.raises(InferenceServerException) as caught:
        call(address, protocol, method, *arguments, **options)
    assert caught.value.status() in status, caught.value
    assert "\n" not in caught.value.message()
    assert call(address, protocol, "is_server_ready")
    return caught.value.message()


def infer(address, protocol, texts, **options):
    return call(address, protocol, "infer", MODEL, [tensor(protocol, texts)], **options)


def labels_of(server, texts):
    answer = httpx.post(f"{server.url}/v1/predict", json={"texts": texts}).json()
    return [prediction["label"] for prediction in answer["predictions"]]


# L0_infer_zero, L0_string_io


def test_no_texts_have_empty_outputs(address, protocol):
    result = infer(address, protocol, [])
    shapes = [result.as_numpy(name).shape for name in OUTPUTS]
    assert shapes == [(0, 1), (0, 1), (0, 3), (0, 3)]


def test_any_unicode_text_is_read_unchanged(address, protocol, server):
    texts = ["", "\x00", "rain\x00goal", "goal\r\n\tteam", "雨 🌧 rain", "\ufeffbank", "\U0010ffff"]
    texts += ["rain " * 5_000, " ", '"\\', "<e1>goal</e1>"]
    for kinds in ({"binary": True}, {"binary": False}) if protocol in HTTP else ({},):
        sent = tensor(protocol, texts, **kinds)
        result = call(address, protocol, "infer", MODEL, [sent])
        assert texts_of(result, "label") == labels_of(server, texts)


def test_bytes_that_are_no_text_are_refused(address, protocol):
    sent = CLIENTS[protocol].InferInput("text", [2, 1], "BYTES")
    sent.set_data_from_numpy(np.array([[b"rain"], [b"\xff"]], np.object_))
    message = refused(REFUSED, address, protocol, "infer", MODEL, [sent])
    assert message == "input 1: text is not UTF-8: invalid start byte at byte 0"


# L0_input_validation


def test_missing_and_additional_inputs_are_refused(address, pair_address, protocol):
    text, pair = tensor(protocol, ["rain"]), tensor(protocol, ["goal"], name="text_pair")
    for target, inputs in ((address, []), (address, [text, pair]), (pair_address, [text])):
        message = refused(REFUSED, target, protocol, "infer", MODEL, inputs)
        assert message.startswith("inputs: expected ")
    result = call(pair_address, protocol, "infer", MODEL, [pair, text])  # in any order
    assert texts_of(result, "label") == ["sport"]


@pytest.mark.parametrize("shape", [[1, 1], [3, 1], [2, 2], [1], [2, 1, 1]])
def test_data_of_another_shape_are_refused(address, protocol, shape):
    sent = tensor(protocol, ["rain", "goal"])
    sent.set_shape(shape)
    message = refused(REFUSED, address, protocol, "infer", MODEL, [sent])
    assert message.startswith("input text: expected ")


# L0_query, L0_parameters, L0_client_timeout, L0_classification


def test_unknown_models_and_versions_are_not_found(address, protocol):
    for method in ("get_model_metadata", "get_model_config", "get_inference_statistics"):
        assert "other" in refused(UNKNOWN, address, protocol, method, "other")
        for version in ("0", "-1", "nine", "9" * 40):
            refused(UNKNOWN, address, protocol, method, MODEL, version)
    assert not call(address, protocol, "is_model_ready", MODEL, "9")


def test_unknown_parameters_are_ignored(address, protocol):
    options = {"parameters": {"mine": 42, "other": "text", "flag": True}, "priority": 2}
    assert texts_of(infer(address, protocol, ["goal"], **options), "label") == ["sport"]
    options = {"sequence_id": 5, "sequence_start": True, "sequence_end": True}
    assert texts_of(infer(address, protocol, ["goal"], **options), "label") == ["sport"]


def test_a_request_expires(address, protocol):
    text = [tensor(protocol, ["rain"])]
    assert "deadline" in refused(EXPIRED, address, protocol, "infer", MODEL, text, timeout=1)
    assert infer(address, protocol, ["rain"], timeout=60_000_000)


def test_a_class_count_above_the_number_of_classes_returns_all(address, protocol):
    outputs = [requested_output(protocol, "logits", best=10**6)]
    result = infer(address, protocol, ["rain", "goal"], outputs=outputs)
    assert result.as_numpy("logits").shape == (2, 3)
    outputs = [requested_output(protocol, "label", best=1)]
    text = [tensor(protocol, ["rain"])]
    message = refused(REFUSED, address, protocol, "infer", MODEL, text, outputs=outputs)
    assert "classification is supported for probabilities and logits" in message


# L0_shared_memory, L0_trace, L0_logging: extensions that are not announced


def test_extensions_that_are_not_announced_are_refused(address, protocol):
    extensions = call(address, protocol, "get_server_metadata")["extensions"]
    assert not {*extensions} & {"system_shared_memory", "cuda_shared_memory", "trace", "logging"}
    for method, *arguments in (
        ("get_system_shared_memory_status",),
        ("get_cuda_shared_memory_status",),
        ("register_system_shared_memory", "region", "/region", 64),
        ("unregister_system_shared_memory",),
        ("get_trace_settings",),
        ("update_trace_settings",),
        ("get_log_settings",),
        ("update_log_settings", {"log_info": False}),
    ):
        refused(NOT_ANNOUNCED, address, protocol, method, *arguments)


# L0_http, L0_http_fuzz


@pytest.mark.parametrize("protocol", HTTP)
@pytest.mark.parametrize("binary", [(True, False), (False, True)])
def test_binary_data_and_json_may_be_mixed(pair_address, protocol, binary):
    inputs = [
        tensor(protocol, texts, name=name, binary=is_binary)
        for name, texts, is_binary in zip(
            ("text", "text_pair"), (["rain", "goal"], ["goal", "bank"]), binary, strict=True
        )
    ]
    names = ("label", "score")
    outputs = [requested_output(protocol, name, binary=name == "label") for name in names]
    result = call(pair_address, protocol, "infer", MODEL, inputs, outputs=outputs)
    assert texts_of(result, "label") == ["sport", "money"]
    head = result.get_response()
    head = as_json(head) if not isinstance(head, dict) else head
    assert ["data" in output for output in head["outputs"]] == [False, True]


def send(server, content, length=None, **headers):
    headers |= {} if length is None else {LENGTH: str(length)}
    url = f"{server.url}/v2/models/{MODEL}/infer"
    answer = httpx.post(url, content=content, headers=headers, timeout=60)
    assert httpx.get(f"{server.url}/v2/health/ready").json() == {"ready": True}
    return answer


def test_a_raw_binary_request_may_have_many_chunks(server):
    answer = send(server, (b"a" for _ in range(20_000)), 0)
    assert answer.status_code == 200


def test_a_raw_binary_request_needs_a_model_with_one_input(pair_address):
    url = f"http://{pair_address.http}/v2/models/{MODEL}/infer"
    answer = httpx.post(url, content=b"rain", headers={LENGTH: "0"})
    assert answer.status_code == 400
    assert "found raw binary data; a raw binary request has one input" in answer.json()["error"]
