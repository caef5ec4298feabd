"""gRPC's messages become what is asked, and answers become messages.

The messages are those that tritonclient carries, of
https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto

Shapes: N texts.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from pydantic import BaseModel
from tritonclient.grpc.service_pb2 import InferParameter, ModelInferRequest, ModelInferResponse

from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.infer_request import (
    OUTPUTS,
    Asked,
    Value,
    Wanted,
    check_count,
    check_tensor,
    enough,
    read_number,
    read_texts,
    read_wanted,
)
from pipework.serve.inference_protocol.infer_response import chosen
from pipework.serve.inference_protocol.tensors import (
    ProtocolError,
    datatype,
    elements,
    packed,
    shown,
)
from pipework.serve.text_tensors import Answer

M = TypeVar("M", bound=Message)


def read_message(request: ModelInferRequest, names: Sequence[str], limits: LimitSettings) -> Asked:
    """Read a request for a model that takes inputs of those names.

    Raises:
        ProtocolError: the request is not one; the message says where.
        TooLargeError: there are too many texts.
    """
    parameters = _parameters(request.parameters)
    return Asked(
        id=request.id,
        texts=read_texts(_inputs(request, limits), names),
        outputs=_outputs(request),
        timeout_us=read_number(parameters, "timeout"),
        priority=read_number(parameters, "priority"),
    )


def write_message(asked: Asked, answer: Answer, name: str, version: str) -> ModelInferResponse:
    """Return the answer of a model; all its tensors are raw."""
    response = ModelInferResponse(model_name=name, model_version=version, id=asked.id)
    for output, array, _ in chosen(asked, answer):
        response.outputs.add(name=output, datatype=datatype(array), shape=array.shape)
        response.raw_output_contents.append(packed(array))
    return response


def message(described: BaseModel, kind: type[M]) -> M:
    """Return a description as the message whose fields have the same names."""
    found: M = ParseDict(described.model_dump(mode="json"), kind())
    return found


def _inputs(request: ModelInferRequest, limits: LimitSettings) -> dict[str, list[bytes]]:
    """Return the elements of each tensor, by its name."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        counts = f"expected {len(request.inputs)}, one for each input, found {len(raw)}"
        text = f"raw_input_contents: {counts}"
        raise ProtocolError(text)
    found: dict[str, list[bytes]] = {}
    for index, tensor in enumerate(request.inputs):
        check_tensor(tensor.name, tensor.datatype, tensor.shape, found)
        if raw and tensor.HasField("contents"):
            text = f"input {shown(tensor.name)}: found both contents and raw_input_contents"
            raise ProtocolError(text)
        if raw:
            found[tensor.name] = elements(
                memoryview(raw[index]), tensor.name, enough(tensor.shape, limits)
            )
        else:
            found[tensor.name] = list(tensor.contents.bytes_contents)
        check_count(tensor.name, tensor.shape, len(found[tensor.name]), limits)
    return found


def _outputs(request: ModelInferRequest) -> dict[str, Wanted]:
    if not request.outputs:
        return dict.fromkeys(OUTPUTS, Wanted(as_bytes=True))
    return {
        one.name: read_wanted(one.name, _parameters(one.parameters), as_bytes=True)
        for one in request.outputs
    }


def _parameters(given: Mapping[str, InferParameter]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(value, kind)
    return found
