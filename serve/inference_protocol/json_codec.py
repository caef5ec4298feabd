"""Reads requests in JSON with optional binary tensor data, and writes the requested outputs so.

Shapes: N texts, C classes.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.infer_request import (
    MAX_DIMENSIONS,
    MAX_TENSORS,
    JsonParameters,
    ParsedRequest,
    ProtocolError,
    check_count,
    check_tensor,
    datatype,
    elements,
    elements_needed,
    json_values,
    packed,
    printable,
    read_number,
    read_outputs,
    read_texts,
)
from pipework.wire.schemas import check_json_values, explain
from pipework.wire.text_tensors import ROWS, OutputTensors

HEAD_LENGTH = "Inference-Header-Content-Length"
SIZE = "binary_data_size"
_HINT = (
    'send {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["..."]}]}, '
    "or see all fields in /docs"
)
MAX_DIMENSION = 2**31 - 1  # numbers with thousands of digits are slow to parse and to print
# fail_fast: an error object for each element of a large list takes minutes and gigabytes.
_Strings = Annotated[list[str], Field(fail_fast=True)]
NamedTensor = tuple[str, NDArray[np.generic], bool]


class _Part(BaseModel):
    # Unknown fields are ignored: clients of later versions may send more.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class InputTensor(_Part):
    """An input tensor, with its data here or as `binary_data_size` bytes after the JSON."""

    name: str
    shape: Annotated[
        list[Annotated[int, Field(ge=0, le=MAX_DIMENSION)]],
        Field(max_length=MAX_DIMENSIONS, fail_fast=True),
    ]
    datatype: str
    parameters: JsonParameters = {}
    data: Annotated[list[str | _Strings], Field(fail_fast=True)] | None = None


class OutputTensor(_Part):
    """A requested output tensor."""

    name: str
    parameters: JsonParameters = {}


class InferRequest(_Part):
    """The JSON of a request."""

    id: str = ""
    parameters: JsonParameters = {}
    inputs: Annotated[
        list[InputTensor], Field(min_length=1, max_length=MAX_TENSORS, fail_fast=True)
    ]
    outputs: Annotated[list[OutputTensor], Field(max_length=MAX_TENSORS, fail_fast=True)] | None = (
        None
    )


def read_infer(
    body: bytes, head_length: str | None, names: Sequence[str], limits: LimitSettings | None = None
) -> ParsedRequest:
    """Read a request.

    Args:
        body: JSON, followed by binary tensor data; without JSON the body is a text.
        head_length: the header with the length of the JSON in bytes; None for the whole body.
        names: names of the model's inputs.
        limits: limits; the number of texts is checked before the texts are read.

    Raises:
        ProtocolError: the request is invalid; the message has the place.
        TooLargeError: there are too many texts, or a text is too long.
    """
    limits = limits or LimitSettings()
    end = _head_end(head_length, len(body))
    if head_length is not None and not end:
        return _raw_request(body, names, limits)
    head = body[:end]
    check_json_values(head, limits.texts)
    try:
        request = InferRequest.model_validate_json(head)
    except ValidationError as error:
        raise ProtocolError(explain(error), _HINT) from error
    inputs = _inputs(request, memoryview(body)[end:], limits)
    outputs = [(output.name, output.parameters) for output in request.outputs or ()]
    as_bytes = request.parameters.get("binary_data_output") is True
    return ParsedRequest(
        id=request.id,
        texts=read_texts(inputs, names, limits),
        outputs=read_outputs(outputs, as_bytes=as_bytes),
        timeout_us=read_number(request.parameters, "timeout"),
        priority=read_number(request.parameters, "priority"),
    )


def _raw_request(body: bytes, names: Sequence[str], limits: LimitSettings) -> ParsedRequest:
    """Return the request of a body that is a text, whose outputs are all binary.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md#raw-binary-request
    """
    if len(names) != 1:
        message = (
            f"body: expected JSON with the inputs {' and '.join(names)}, found raw binary data"
        )
        raise ProtocolError(message, "a raw binary request has one input")
    texts = read_texts({names[0]: [body]}, names, limits)
    return ParsedRequest(id="", texts=texts, outputs=read_outputs((), as_bytes=True))


def _head_end(header: str | None, length: int) -> int:
    if header is None:
        return length
    digits = header.isascii() and header.isdigit() and len(header) < len(str(MAX_DIMENSION))
    if not (digits and int(header) <= length):
        message = f"{HEAD_LENGTH}: expected a number of bytes up to {length}, found {header[:20]!r}"
        raise ProtocolError(message)
    return int(header)


def _inputs(
    request: InferRequest, rest: memoryview, limits: LimitSettings
) -> dict[str, list[bytes]]:
    """Return the elements of each tensor by name."""
    values: dict[str, list[bytes]] = {}
    for tensor in request.inputs:
        check_tensor(tensor.name, tensor.datatype, tensor.shape, tensor.parameters, values)
        size = _size(tensor, len(rest))
        if size is None:
            values[tensor.name] = _from_json(tensor)
        else:
            values[tensor.name] = elements(
                rest[:size], tensor.name, elements_needed(tensor.shape, limits)
            )
            rest = rest[size:]
        check_count(tensor.name, tensor.shape, len(values[tensor.name]), limits)
    if rest:
        message = f"body: {len(rest)} bytes after the tensors that {SIZE} declares"
        raise ProtocolError(message)
    return values


def _size(tensor: InputTensor, left: int) -> int | None:
    size = tensor.parameters.get(SIZE)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        message = (
            f"input {printable(tensor.name)}: expected a {SIZE} of 0 to {left}, found {size!r:.20}"
        )
        raise ProtocolError(message)
    if tensor.data is not None:
        message = f"input {printable(tensor.name)}: found both data and {SIZE}"
        raise ProtocolError(message)
    return size


def _from_json(tensor: InputTensor) -> list[bytes]:
    if tensor.data is None:
        message = f"input {printable(tensor.name)}: found neither data nor {SIZE}"
        raise ProtocolError(message)
    return [_text(row, tensor.name).encode() for row in tensor.data]


def _text(row: str | list[str], name: str) -> str:
    """Return an element of the data: a text, or a row with one text."""
    if isinstance(row, str):
        return row
    if len(row) != 1:  # the data of shape [N, 1] may be flat, or rows of one text
        message = f"input {printable(name)}: expected rows of one text, found a row of {len(row)}"
        raise ProtocolError(message)
    return row[0]


def classify(
    values_NC: NDArray[np.float32], labels_C: Sequence[str], best: int
) -> NDArray[np.object_]:
    """Return the top classes as UTF-8 bytes `value:index:label` [N, K], highest value first.

    K is `best`, or C if that is less.
    """
    ranks_NK = np.argsort(-values_NC, axis=1, kind="stable")[:, :best]
    words = [
        [f"{row[index]:f}:{index}:{labels_C[index]}".encode() for index in ranks]
        for row, ranks in zip(values_NC.tolist(), ranks_NK.tolist(), strict=True)
    ]
    return np.array(words, np.object_).reshape(ranks_NK.shape)


def requested_tensors(request: ParsedRequest, answer: OutputTensors) -> Iterator[NamedTensor]:
    """Yield name, tensor and `as_bytes` of each requested output, and of `rows` if there is one."""
    tensors = answer.tensors()
    if ROWS in tensors:
        as_bytes = next(iter(request.outputs.values())).as_bytes
        yield ROWS, tensors[ROWS], as_bytes
    elif ROWS in request.outputs:
        message = f"unknown output {ROWS!r}: this model has one row for each text"
        raise ProtocolError(message)
    for name, output in request.outputs.items():
        if name == ROWS:
            continue
        if not output.best:
            yield name, tensors[name], output.as_bytes
            continue
        values_NC = tensors[name].astype(np.float32, copy=False)
        yield name, classify(values_NC, answer.labels_C, output.best), output.as_bytes


def write_response(
    request: ParsedRequest, answer: OutputTensors, name: str, version: str
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON part if binary data follow it."""
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output, array, as_bytes in requested_tensors(request, answer):
        part: dict[str, Any] = {"name": output, "datatype": datatype(array), "shape": array.shape}
        if as_bytes:
            binary.append(packed(array))
            part["parameters"] = {SIZE: len(binary[-1])}
        else:
            part["data"] = json_values(array)
        outputs.append(part)
    head: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": outputs}
    head |= {"id": request.id} if request.id else {}
    if parameters := answer.parameters():
        head["parameters"] = parameters
    text = json.dumps(head).encode()
    return b"".join((text, *binary)), len(text) if binary else None
