import json

import numpy as np
import pytest

from pipework.errors import TooLargeError
from pipework.serve.inference_protocol.infer_request import (
    OUTPUTS,
    ProtocolError,
    RequestedOutput,
    packed,
)
from pipework.serve.inference_protocol.json_codec import read_infer
from pipework.serve.request.context import RequestOptions
from pipework.wire.text_tensors import TEXT, TEXT_PAIR

ONE = (TEXT,)


def tensor(**given):
    return {"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": ["a", "b"], **given}


def body(*inputs, **given):
    return json.dumps({"inputs": list(inputs) or [tensor()], **given}).encode()


def wanted(name, **parameters):
    return body(outputs=[{"name": name, "parameters": parameters}])


def as_bytes(texts, name="text", **parameters):
    """Return a tensor whose data follow the JSON, and its data."""
    data = packed(np.array(texts, np.object_))
    parameters = {"binary_data_size": len(data), **parameters}
    described = tensor(name=name, shape=[len(texts)], parameters=parameters)
    return {key: value for key, value in described.items() if key != "data"}, data


@pytest.mark.parametrize("shape", [[2], [2, 1]])
@pytest.mark.parametrize("data", [["a", "ü"], [["a"], ["ü"]]])
def test_json_is_read_flat_and_in_rows(shape, data):
    asked = read_infer(body(tensor(shape=shape, data=data), id="7"), None, ONE)
    assert (asked.id, asked.texts.text) == ("7", [b"a", "ü".encode()])
    assert asked.texts.text_pair is None
    assert asked.outputs == dict.fromkeys(OUTPUTS, RequestedOutput(as_bytes=False))


def test_a_pair_may_be_bytes_and_json():
    described, data = as_bytes([b"x", b"y"], TEXT_PAIR)
    head = body(tensor(), described)
    asked = read_infer(head + data, str(len(head)), (TEXT, TEXT_PAIR))
    assert (asked.texts.text, asked.texts.text_pair) == ([b"a", b"b"], [b"x", b"y"])


def test_binary_outputs_are_requested_per_output_or_for_all():
    outputs = [{"name": "label"}, {"name": "score", "parameters": {"binary_data": False}}]
    asked = read_infer(body(outputs=outputs, parameters={"binary_data_output": True}), None, ONE)
    assert asked.outputs == {
        "label": RequestedOutput(as_bytes=True),
        "score": RequestedOutput(as_bytes=False),
    }
    asked = read_infer(body(outputs=[{"name": "label"}]), None, ONE)
    assert asked.outputs == {"label": RequestedOutput(as_bytes=False)}
    assert [*read_infer(body(outputs=[]), None, ONE).outputs] == [*OUTPUTS]


def test_classifications_are_requested_with_their_number():
    outputs = [{"name": "logits", "parameters": {"classification": 2, "binary_data": True}}]
    asked = read_infer(body(outputs=outputs), None, ONE)
    assert asked.outputs == {"logits": RequestedOutput(as_bytes=True, best=2)}


@pytest.mark.parametrize(("priority", "bulk"), [(0, True), (1, False), (2, True), (10**9, True)])
def test_the_priority_parameter(priority, bulk):
    asked = read_infer(body(parameters={"priority": priority}), None, ONE)
    assert asked.options(RequestOptions(bulk=True)).bulk is bulk


def test_the_sooner_deadline_counts():
    asked = read_infer(body(parameters={"timeout": 2_000_000}), None, ONE)
    assert 1 < asked.options(RequestOptions()).left_s <= 2
    assert 1 < asked.options(RequestOptions.within(60)).left_s <= 2
    assert asked.options(RequestOptions.within(0.5)).left_s <= 0.5
    forever = read_infer(body(parameters={"timeout": 10**40}), None, ONE)
    assert forever.options(RequestOptions()).left_s <= 86_400
    assert read_infer(body(), None, ONE).options(RequestOptions()) == RequestOptions()


def test_unknown_fields_are_ignored():
    asked = read_infer(body(tensor(new=1), priority=3, parameters={"timeout": 5}), None, ONE)
    assert asked.texts.text == [b"a", b"b"]


SHORT, _ = as_bytes([b"ab"], binary_data_size=99)
NO_NUMBER, _ = as_bytes([b"ab"], binary_data_size=True)
IN_MEMORY = {**SHORT, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 9}}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "body: expected JSON in UTF-8: EOF"),
        (b"\xff", "body: expected JSON in UTF-8"),
        (b"[" * 10_000, "body: expected JSON in UTF-8: recursion limit"),
        (b"{}", "inputs: is missing"),
        (b'{"inputs": []}', "inputs: expected at least one item, found none"),
        (body(tensor(datatype="INT64")), "expected datatype BYTES, found 'INT64'"),
        (body(tensor(data=[1, 2])), r"^inputs\[0\].data\[0\]: expected a valid string, found a n"),
        (body(tensor(data=["a", 2])), r"^inputs\[0\].data\[1\]: expected a valid string, found a"),
        (body(parameters={"a": []}), "^parameters.a: expected a valid string, found a list of 0$"),
        (body(tensor(data=["a"])), r"expected \[2, 1\] elements, found 1"),
        (body(tensor(shape=[10**9])), r"expected \[10{9}\] elements, found 2"),
        (body(tensor(shape=[10**4000])), "less than or equal to 2147483647"),
        (body(tensor(shape=[2, 2])), r"expected shape \[N\] or \[N, 1\], found \[2, 2\]"),
        (body(tensor(shape=[])), r"expected shape \[N\] or \[N, 1\], found \[\]"),
        (body(tensor(shape=[-2])), "greater than or equal to 0"),
        (body(tensor(shape=[2.0])), "expected a valid integer, found 2.0"),
        (body(tensor(name="words")), "inputs: expected text, found words"),
        (body(tensor(), tensor(name="text_pair")), "expected text, found text, text_pair"),
        (body(tensor(name="a\nb")), r"inputs: expected text, found 'a\\nb'"),
        (body(tensor(), tensor()), "input text: found twice"),
        (body(tensor(data=None)), "input text: found neither data nor binary_data_size"),
        (body(tensor(parameters={"binary_data_size": 0})), "found both data and"),
        (body(SHORT), "expected a binary_data_size of 0 to 0, found 99"),
        (body(NO_NUMBER), "found True"),
        (body(tensor(data=[["a", "b"]])), "expected rows of one text, found a row of 2"),
        (body(tensor(data=[["a", "b"], []])), "expected rows of one text, found a row of 2"),
        (body(tensor(data=[["a"], []])), "expected rows of one text, found a row of 0"),
        (body(IN_MEMORY), "input text: expected its data in the message, found shared_memory_reg"),
        (
            wanted("label", shared_memory_region="r", shared_memory_byte_size=9),
            "output label: expected its data in the message, found shared_memory_region",
        ),
        (body(outputs=[{"name": "label"}] * 2), "output label: found twice"),
        (
            wanted("label", classification=2),
            "classification is supported for probabilities and log",
        ),
        (wanted("logits", classification="2"), "classification: expected a whole number"),
        (wanted("length"), "unknown output 'length'; the outputs are label, score, prob"),
        (body(parameters={"timeout": -1}), "parameter timeout: expected a whole number from 0"),
        (body(parameters={"priority": True}), "parameter priority: .* found True"),
        (body(parameters={"priority": -(10**4000)}), "parameter priority"),
        (body(*[tensor()] * 17), "inputs: expected at most 16 items, found 17"),
        (
            body(outputs=[{"name": "label"}] * 17),
            "outputs: expected at most 16 items, found 17",
        ),
        (body(tensor(shape=[1] * 9)), r"shape: expected at most 8 items, found 9"),
        (
            body(parameters={str(number): [] for number in range(65)}),
            "parameters: expected at most 64 parameters, found 65",
        ),
        (
            body(tensor(parameters=dict.fromkeys(map(str, range(65)), 1))),
            r"inputs\[0\].parameters: expected at most 64 parameters, found 65",
        ),
        (body(tensor(data=[[1] * 1000] * 9)), "expected .*string"),
    ],
)
def test_an_invalid_request_is_refused_in_one_line(sent, said):
    with pytest.raises(ProtocolError, match=said) as caught:
        read_infer(sent, None, ONE)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_first_fault_of_large_data_ends_their_validation(monkeypatch):
    counts = []

    def note(error):
        counts.append(error.error_count())
        return "wrong"

    monkeypatch.setattr("pipework.serve.inference_protocol.json_codec.explain", note)
    for wrong in (0, [], [0], {}):
        with pytest.raises(ProtocolError):
            read_infer(body(tensor(data=["a", *[wrong] * 2000])), None, ONE)
        with pytest.raises(ProtocolError):
            read_infer(body(tensor(data=[["a"], *[wrong] * 2000])), None, ONE)
    assert max(counts) <= 3


@pytest.mark.parametrize("length", ["-1", "1e3", "", " 5", "٣", "99999", "+3", "0x10", "9" * 5000])
def test_a_wrong_length_of_the_json_is_refused(length):
    with pytest.raises(ProtocolError, match="Inference-Header-Content-Length: expected a number"):
        read_infer(body(), length, ONE)


def test_pairs_of_different_numbers_are_refused():
    sent = body(tensor(), tensor(name="text_pair", shape=[1], data=["x"]))
    with pytest.raises(ProtocolError, match="inputs: 2 of text, but 1 of text_pair"):
        read_infer(sent, None, (TEXT, TEXT_PAIR))


def test_extra_bytes_are_refused():
    head = body()
    with pytest.raises(ProtocolError, match="body: 3 bytes after the tensors"):
        read_infer(head + b"abc", str(len(head)), ONE)


def test_too_many_texts_are_refused():
    sent = body(tensor(shape=[1025], data=["rain"] * 1025))
    with pytest.raises(TooLargeError, match="at most 1024 texts, found 1025"):
        read_infer(sent, None, ONE)
