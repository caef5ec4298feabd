"""Reads requests from gRPC messages and writes responses to gRPC messages.

tritonclient has the messages:
https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto

Shapes: N texts.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from pydantic import BaseModel
from tritonclient.grpc.service_pb2 import InferParameter, ModelInferRequest, ModelInferResponse

from pipework.errors import TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.infer_request import (
    MAX_PARAMETERS,
    MAX_TENSORS,
    ParsedRequest,
    ProtocolError,
    Value,
    check_count,
    check_few,
    check_tensor,
    datatype,
    elements,
    elements_needed,
    packed,
    printable,
    read_number,
    read_outputs,
    read_texts,
)
from pipework.serve.inference_protocol.json_codec import requested_tensors
from pipework.wire.schemas import OTHER_VALUES, SPLIT_HINT, VALUES_PER_TEXT
from pipework.wire.text_tensors import OutputTensors

M = TypeVar("M", bound=Message)


def check_values(message: memoryview, texts: int) -> None:
    """Check that a serialized request has not many more values than one of this number of texts.

    The parser uses up to 30 bytes of memory for each byte, so this precedes it.
    https://protobuf.dev/programming-guides/encoding/

    Raises:
        TooLargeError: it has more.
    """
    most = VALUES_PER_TEXT * texts + OTHER_VALUES
    if _values(message, ModelInferRequest.DESCRIPTOR, most) > most:
        text = f"message: expected at most {texts} texts, found more than {most} values"
        raise TooLargeError(text, SPLIT_HINT)


def read_message(
    request: ModelInferRequest, names: Sequence[str], limits: LimitSettings
) -> ParsedRequest:
    """Read a request for a model with the given input names.

    Raises:
        ProtocolError: the request is invalid; the message has the place.
        TooLargeError: there are too many texts, or a text is too long.
    """
    parameters = _parameters(request.parameters)
    check_few(len(request.outputs), MAX_TENSORS, "outputs")
    outputs = [(output.name, _parameters(output.parameters)) for output in request.outputs]
    return ParsedRequest(
        id=request.id,
        texts=read_texts(_inputs(request, limits), names, limits),
        outputs=read_outputs(outputs, as_bytes=True),
        timeout_us=read_number(parameters, "timeout"),
        priority=read_number(parameters, "priority"),
    )


def write_message(
    request: ParsedRequest, answer: OutputTensors, name: str, version: str
) -> ModelInferResponse:
    """Return the response message; all its tensors are raw."""
    response = ModelInferResponse(model_name=name, model_version=version, id=request.id)
    for parameter, value in answer.parameters().items():
        response.parameters[parameter].string_param = value
    for output, array, _ in requested_tensors(request, answer):
        response.outputs.add(name=output, datatype=datatype(array), shape=array.shape)
        response.raw_output_contents.append(packed(array))
    return response


def message(described: BaseModel, kind: type[M]) -> M:
    """Convert a description to the message type whose fields have the same names."""
    converted: M = ParseDict(described.model_dump(mode="json"), kind())
    return converted


def _inputs(request: ModelInferRequest, limits: LimitSettings) -> dict[str, list[bytes]]:
    """Return the elements of each tensor by name."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        counts = f"expected {len(request.inputs)}, one for each input, found {len(raw)}"
        text = f"raw_input_contents: {counts}"
        raise ProtocolError(text)
    check_few(len(request.inputs), MAX_TENSORS, "inputs")
    values: dict[str, list[bytes]] = {}
    for index, tensor in enumerate(request.inputs):
        check_tensor(tensor.name, tensor.datatype, tensor.shape, tensor.parameters, values)
        if raw and tensor.HasField("contents"):
            text = f"input {printable(tensor.name)}: found both contents and raw_input_contents"
            raise ProtocolError(text)
        if raw:
            values[tensor.name] = elements(
                memoryview(raw[index]), tensor.name, elements_needed(tensor.shape, limits)
            )
        else:
            most = elements_needed(tensor.shape, limits) + 1
            values[tensor.name] = tensor.contents.bytes_contents[:most]
        check_count(tensor.name, tensor.shape, len(values[tensor.name]), limits)
    return values


def _values(message: memoryview, kind: Descriptor, most: int) -> int:
    """Count the fields of a message and the elements of packed fields; stop after `most`.

    A message that is not valid is counted up to the place where a parser stops.
    """
    count = place = 0
    with suppress(IndexError):  # the message ends within a field
        while place < len(message) and count <= most:
            count += 1
            tag, place = _varint(message, place)
            match tag & 7:
                case 0:
                    _, place = _varint(message, place)
                case 1:
                    place += 8
                case 2:
                    size, place = _varint(message, place)
                    part = message[place : place + size]
                    place += size
                    count += _elements(part, kind.fields_by_number.get(tag >> 3), most - count)
                case 5:
                    place += 4
                case _:  # a group has no length; its fields follow
                    pass
    return count


def _elements(part: memoryview, field: FieldDescriptor | None, most: int) -> int:
    if field is None or field.type in {FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING}:
        return 0
    if field.message_type is not None:
        return _values(part, field.message_type, most)
    return len(part)  # packed numbers, of at least one byte each


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    number = shift = 0
    while (byte := message[place]) & 128:
        number |= (byte & 127) << shift
        shift += 7
        place += 1
    return number | byte << shift, place + 1


def _parameters(message_parameters: Mapping[str, InferParameter]) -> dict[str, Value]:
    check_few(len(message_parameters), MAX_PARAMETERS, "parameters")
    parameters: dict[str, Value] = {}
    for name, value in message_parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            parameters[name] = getattr(value, kind)
    return parameters
