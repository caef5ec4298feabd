"""The gRPC transport with a real server whose responses the tests set."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from pipework.client import Client
from pipework.errors import InputError, NotReadyError, PipeError, TooBusyError, UnknownModelError
from pipework.tasks.predictions import SingleLabel

CODES = grpc.StatusCode
NAMES = {"1": (b"rain", b"sun"), "2": (b"sun", b"rain")}
PROBABILITIES = np.array([[0.25, 0.75]], np.float32)


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A service with two models, one of them for texts; records its requests."""

    def __init__(self):
        self.asked, self.said, self.fault = [], [], None
        self.index_fault, self.cancelled = None, 0  # requests that are cancelled next
        self.datatypes = ("BYTES", "FP32")
        self.versions, self.shape = ["1"], [1, 2]  # those that answer next; the last stays

    def ServerReady(self, request, context):  # noqa: ARG002, N802
        return service_pb2.ServerReadyResponse(ready=self.fault is None)

    def RepositoryIndex(self, request, context):  # noqa: ARG002, N802
        if self.index_fault is not None:
            context.abort(self.index_fault, "because")
        index = service_pb2.RepositoryIndexResponse()
        for name in ("topics", "topics-engine"):
            index.models.add(name=name, version="1", state="READY")
        return index

    def ModelMetadata(self, request, context):  # noqa: ARG002, N802
        found = service_pb2.ModelMetadataResponse(name=request.name)
        found.inputs.add(name="text" if request.name == "topics" else "input_ids")
        for name in ("label", "score", "probabilities"):
            found.outputs.add(name=name, shape=self.shape)
        return found

    def ModelInfer(self, request, context):  # noqa: N802
        if self.cancelled:
            self.cancelled -= 1
            context.abort(CODES.CANCELLED, "CANCELLED")
        if self.fault is not None:
            code, text, *behind = self.fault
            context.set_trailing_metadata(behind)
            context.abort(code, text)
        self.asked.append(request)
        self.said.append((dict(context.invocation_metadata()), context.time_remaining()))
        version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        names = NAMES[version]
        answer = service_pb2.ModelInferResponse(model_version=version)
        if "classification" in request.outputs[0].parameters:
            words = np.array([[b"0.75:1:%b" % names[1], b"0.25:0:%b" % names[0]]], np.object_)
            answer.outputs.add(name="probabilities", datatype="BYTES", shape=[1, 2])
            answer.raw_output_contents.append(serialize_byte_tensor(words).item())
            return answer
        label = np.array([[names[1]]], np.object_)
        answer.outputs.add(name="label", datatype=self.datatypes[0], shape=[1, 1])
        answer.outputs.add(name="score", datatype=self.datatypes[1], shape=[1, 1])
        answer.outputs.add(name="probabilities", datatype="FP32", shape=self.shape)
        answer.raw_output_contents.extend(
            [serialize_byte_tensor(label).item(), np.float32(0.75).tobytes()]
        )
        answer.raw_output_contents.append(PROBABILITIES.tobytes())
        return answer


@pytest.fixture
def service():
    serving, server = Service(), grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(serving, server)
    serving.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield serving
    server.stop(None).wait()


@pytest.mark.parametrize("letters", [1, 2_000_000])
def test_a_request_that_a_stopping_server_cancels_is_sent_again(service, letters):
    service.cancelled = 2
    with Client(service.url) as client:
        (found,) = client.predict(["a" * letters])
    assert found.label == "sun"
    assert service.cancelled == 0


def test_the_only_text_model_is_selected_and_its_labels_are_read_once(service):
    with Client(service.url, key="mine", bulk=True) as client:
        assert client.ready()
        for text in ("雨", "b"):
            (found,) = client.predict([text])
    assert found == SingleLabel(label="sun", score=0.75, scores={"sun": 0.75, "rain": 0.25})
    first, named, second = service.asked
    assert {one.model_name for one in service.asked} == {"topics"}
    assert named.outputs[0].parameters["classification"].int64_param == 2
    assert not second.outputs[0].parameters
    assert deserialize_bytes_tensor(first.raw_input_contents[0]).tolist() == ["雨".encode()]
    assert first.parameters["priority"].uint64_param == 2
    metadata, left_s = service.said[0]
    assert metadata["authorization"] == "Bearer mine"
    assert 25 < left_s < 31


def test_class_names_are_those_of_the_version_that_responded(service):
    with Client(service.url) as client:
        client.predict(["a"])
        service.versions = ["2"]
        assert client.predict(["a"])[0].scores == {"rain": 0.75, "sun": 0.25}
        service.versions = ["1"]
        assert client.predict(["a"])[0].scores == {"sun": 0.75, "rain": 0.25}
    asked = [one for one in service.asked if "classification" in one.outputs[0].parameters]
    assert len(asked) == 2


@pytest.mark.parametrize("shape", [[], [2], [1, 3], [-1, 1, 2]])
def test_tensors_of_a_wrong_shape_are_reported_in_one_line(service, shape):
    service.shape = shape
    with Client(service.url) as client, pytest.raises(PipeError, match="cannot be read") as caught:
        client.predict(["a"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("datatypes", "message"),
    [
        (("FP32", "FP32"), "expected label as BYTES, found FP32"),
        (("BYTES", "BYTES"), "expected score as FP32, found BYTES"),
    ],
)
def test_tensors_of_another_datatype_are_reported(service, datatypes, message):
    service.datatypes = datatypes
    with Client(service.url) as client, pytest.raises(PipeError, match=message):
        client.predict(["a"])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ("abc", "expected a list of examples, found str"),
        (["abc"], "expected an Example, found str"),
        (None, "expected a list of examples, found NoneType"),
    ],
)
def test_other_values_than_examples_are_refused(service, examples, message):
    with Client(service.url) as client, pytest.raises(InputError, match=message):
        client.predict_examples(examples)
    assert service.asked == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ((CODES.INVALID_ARGUMENT, "because"), InputError),
        ((CODES.NOT_FOUND, "because"), UnknownModelError),
        ((CODES.UNAVAILABLE, "because"), NotReadyError),
        ((CODES.RESOURCE_EXHAUSTED, "because", ("retry-after", "7")), TooBusyError),
        ((CODES.UNAUTHENTICATED, "because"), PipeError),
        ((CODES.INTERNAL, "because"), PipeError),
    ],
)
def test_each_status_becomes_its_error(service, fault, kind):
    service.fault = fault
    with Client(service.url) as client, pytest.raises(PipeError, match="because") as caught:
        client.predict(["a"])
    assert type(caught.value) is kind
    if kind is TooBusyError:
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize("model", ["", "/v2/models/m"])
@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1:9", "Failed to connect to remote host: Connection refused"),
        ("no-such-host.invalid:80", ".*no-such-host.invalid.*"),
    ],
)
def test_an_unreachable_server_is_reported(host, reason, model):
    with Client(f"grpc://{host}{model}", retries=2) as client:
        assert not client.ready()
        with pytest.raises(
            PipeError, match=f"^grpc://{host} cannot be reached: {reason}$"
        ) as caught:
            client.predict(["a"])
    assert type(caught.value) is PipeError


def test_an_unresponsive_server_is_reported(service):
    service.fault = (CODES.DEADLINE_EXCEEDED, "late")
    with Client(service.url) as client, pytest.raises(PipeError, match="not respond within 30"):
        client.predict(["a"])


@pytest.mark.parametrize("code", [CODES.UNIMPLEMENTED, CODES.UNAUTHENTICATED])
def test_a_server_that_does_not_list_its_models_is_reported(service, code):
    service.index_fault = code
    with Client(service.url) as client, pytest.raises(PipeError, match="because") as caught:
        client.predict(["a"])
    assert type(caught.value) is (UnknownModelError if code is CODES.UNIMPLEMENTED else PipeError)
