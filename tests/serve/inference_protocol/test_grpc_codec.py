from dataclasses import replace

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import (
    ModelConfigResponse,
    ModelInferRequest,
    ModelInferResponse,
    ModelStatisticsResponse,
)

from pipework.errors import TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.grpc_codec import (
    check_values,
    message,
    read_message,
    write_message,
)
from pipework.serve.inference_protocol.infer_request import (
    OUTPUTS,
    ProtocolError,
    RequestedOutput,
    packed,
)
from pipework.serve.inference_protocol.metadata import (
    Duration,
    InferStatistics,
    ModelConfig,
    ModelStatistics,
    StatisticsResponse,
    TensorConfig,
)
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.wire.text_tensors import TEXT, TEXT_PAIR, OutputTensors

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
ANSWER = OutputTensors.of(Outputs.of(np.array([[0.0, 2.0], [1.0, -1.0]], np.float32)), TASK)
ONE, PAIR = (TEXT,), (TEXT, TEXT_PAIR)
LIMITS = LimitSettings()


def tensor(name="text", shape=(2, 1), contents=None):
    given = {"name": name, "datatype": "BYTES", "shape": shape}
    return given if contents is None else {**given, "contents": {"bytes_contents": contents}}


VALID = tensor(contents=[b"a", b"b"])
IN_MEMORY = {"shared_memory_region": {"string_param": "r"}}


def raw(*texts):
    return packed(np.array(texts, np.object_))


def test_raw_contents_are_in_the_order_of_the_inputs():
    request = ModelInferRequest(
        id="7",
        inputs=[tensor("text_pair"), tensor("text", [2])],
        raw_input_contents=[raw(b"x", b"y"), raw(b"a", b"b")],
    )
    asked = read_message(request, PAIR, LIMITS)
    assert (asked.id, asked.texts.text, asked.texts.text_pair) == ("7", [b"a", b"b"], [b"x", b"y"])
    assert asked.outputs == dict.fromkeys(OUTPUTS, RequestedOutput(as_bytes=True))


def test_typed_contents_are_read():
    request = ModelInferRequest(inputs=[tensor(contents=[b"a", b"b"])])
    assert read_message(request, ONE, LIMITS).texts.text == [b"a", b"b"]


def test_outputs_and_parameters_are_read():
    request = ModelInferRequest(
        inputs=[tensor(contents=[b"a", b"b"])],
        outputs=[
            {"name": "logits", "parameters": {"classification": {"int64_param": 2}}},
            {"name": "label"},
        ],
        parameters={"timeout": {"int64_param": 5}, "priority": {"uint64_param": 2}, "mine": {}},
    )
    asked = read_message(request, ONE, LIMITS)
    assert asked.outputs == {
        "logits": RequestedOutput(as_bytes=True, best=2),
        "label": RequestedOutput(as_bytes=True),
    }
    assert (asked.timeout_us, asked.priority) == (5, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"inputs": [tensor(contents=[b"a", b"b"])], "raw_input_contents": [b""]}, "found both"),
        ({"inputs": [tensor()], "raw_input_contents": [b"", b""]}, "expected 1, one for each"),
        ({"inputs": [tensor(contents=[b"a"])]}, r"expected \[2, 1\] elements, found 1"),
        ({"inputs": [tensor(contents=[b"a", b"b"])] * 2}, "input text: found twice"),
        ({"inputs": [tensor("words", contents=[b"a", b"b"])]}, "expected text, found words"),
        ({"inputs": []}, "inputs: expected text, found"),
        (
            {"inputs": [{**tensor(), "parameters": IN_MEMORY}]},
            "input text: expected its data in the message, found shared_memory_region",
        ),
        (
            {"inputs": [VALID], "outputs": [{"name": "score", "parameters": IN_MEMORY}]},
            "output score: expected its data in the message, found shared_memory_region",
        ),
        ({"inputs": [VALID], "outputs": [{"name": "label"}] * 2}, "output label: found twice"),
        (
            {"inputs": [tensor(shape=[2**62, 2**62], contents=[b"a"])]},
            r"expected shape \[N\] or \[N, 1\]",
        ),
        (
            {"inputs": [tensor(shape=[-1], contents=[b"a"])]},
            r"expected \[-1\] elements, found 1",
        ),
        (
            {"inputs": [VALID], "parameters": {"priority": {"string_param": "high"}}},
            "parameter priority: expected",
        ),
        ({"inputs": [tensor()] * 17}, "expected at most 16 inputs, found 17"),
        (
            {"inputs": [tensor(contents=[b"a", b"b"])], "outputs": [{"name": "label"}] * 17},
            "expected at most 16 outputs, found 17",
        ),
        (
            {"parameters": {str(number): {"int64_param": 1} for number in range(65)}},
            "expected at most 64 parameters, found 65",
        ),
        ({"inputs": [tensor(contents=[b""] * 500_000)]}, r"expected \[2, 1\] elements, found more"),
    ],
)
def test_an_invalid_request_is_refused_in_one_line(given, said):
    with pytest.raises(ProtocolError, match=said) as caught:
        read_message(ModelInferRequest(**given), ONE, LIMITS)
    assert "\n" not in str(caught.value)


def test_a_response_has_the_requested_outputs_as_raw_contents():
    request = ModelInferRequest(
        id="7",
        inputs=[tensor(contents=[b"a", b"b"])],
        outputs=[
            {"name": "logits"},
            {"name": "probabilities", "parameters": {"classification": {"int64_param": 1}}},
        ],
    )
    answer = write_message(read_message(request, ONE, LIMITS), ANSWER, "run", "1")
    logits = {"name": "logits", "datatype": "FP32", "shape": [2, 2]}
    classes = {"name": "probabilities", "datatype": "BYTES", "shape": [2, 1]}
    assert answer == ModelInferResponse(
        model_name="run",
        model_version="1",
        id="7",
        outputs=[logits, classes],
        raw_output_contents=[
            ANSWER.outputs.values.tobytes(),
            raw(b"0.880797:1:b", b"0.880797:0:a"),
        ],
    )


def test_truncated_texts_are_listed_in_a_response():
    request = read_message(ModelInferRequest(inputs=[VALID]), ONE, LIMITS)
    answer = write_message(request, replace(ANSWER, truncated=(0, 1)), "run", "1")
    assert {name: value.string_param for name, value in answer.parameters.items()} == {
        "truncated": "0,1"
    }
    assert not write_message(request, ANSWER, "run", "1").parameters


def test_a_description_becomes_a_message_with_the_same_fields():
    given = TensorConfig(name="text", data_type="TYPE_STRING", dims=(1,))
    policy = {"latest": {"num_versions": 2}}
    described = ModelConfig(
        name="run", version_policy=policy, max_batch_size=9, input=(given,), output=()
    )
    config = message(described, type(ModelConfigResponse().config))
    assert (config.name, config.max_batch_size, config.version_policy.latest.num_versions) == (
        *("run", 9, 2),
    )
    assert (
        config.input[0].data_type
        == ModelConfigResponse().config.input.add(data_type="TYPE_STRING").data_type
    )


def test_statistics_keep_numbers_of_64_bits():
    much = Duration(count=2**60, ns=2**63)
    spent = InferStatistics(
        **dict.fromkeys(
            ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"), much
        )
    )
    one = ModelStatistics(
        name="run",
        version="1",
        last_inference=1,
        inference_count=2,
        execution_count=3,
        inference_stats=spent,
    )
    found = message(StatisticsResponse(model_stats=(one,)), ModelStatisticsResponse).model_stats[0]
    assert (found.name, found.inference_count, found.execution_count) == ("run", 2, 3)
    assert (found.inference_stats.queue.count, found.inference_stats.queue.ns) == (2**60, 2**63)


def few_values(request):
    try:
        check_values(memoryview(request.SerializeToString()), 100)
    except TooLargeError:
        return False
    return True


def test_too_many_values_are_an_error_with_the_limit_of_texts():
    message = ModelInferRequest(raw_input_contents=[b""] * 3000).SerializeToString()
    expected = "message: expected at most 100 texts, found more than 2624 values"
    with pytest.raises(TooLargeError, match=expected):
        check_values(memoryview(message), 100)


def test_a_largest_request_has_few_values():
    large = b"a" * 10_000
    contents = [tensor(name, contents=[large] * 100) for name in ("text", "text_pair")]
    parameters = {str(number): {"string_param": "a" * 99} for number in range(64)}
    outputs = [{"name": "label", "parameters": parameters}] * 4
    assert few_values(ModelInferRequest(inputs=contents, outputs=outputs, parameters=parameters))
    raw_contents = [raw(*[large] * 100)] * 2
    assert few_values(ModelInferRequest(inputs=[tensor()] * 2, raw_input_contents=raw_contents))


@pytest.mark.parametrize(
    "many",
    [
        {"inputs": [tensor()] * 700},
        {"inputs": [tensor(contents=[b""] * 3000)]},
        {"inputs": [tensor(shape=[1] * 3000)]},
        {"inputs": [{"contents": {"int_contents": [1] * 3000}}]},
        {"inputs": [{"contents": {"int64_contents": [2**60] * 3000}}]},
        {"inputs": [{"contents": {"bool_contents": [True] * 3000}}]},
        {"inputs": [{"contents": {"fp32_contents": [1.0] * 3000}}]},
        {"outputs": [{"name": "label"}] * 1500},
        {"outputs": [{"parameters": {str(number): {} for number in range(1000)}}]},
        {"parameters": {str(number): {"bool_param": True} for number in range(1000)}},
        {"raw_input_contents": [b""] * 3000},
    ],
)
def test_many_values_are_counted_at_any_place(many):
    request = ModelInferRequest(**many)
    assert not few_values(request)
    whole = request.SerializeToString()
    with pytest.raises(TooLargeError):
        check_values(memoryview(whole[:-1] + b"\xff" * 20), 100)


@pytest.mark.parametrize(
    "data", [b"", b"\x2a", b"\xff" * 9, b"\x2a\xff\xff\xff\x7fabc", b"\x0b\x0c"]
)
def test_data_that_are_no_message_have_few_values(data):
    check_values(memoryview(data), 100)
