"""A request of the protocol in JSON, some tensors as bytes behind it, becomes what is asked."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
from pipework.serve.inference_protocol.tensors import ProtocolError, elements, shown
from pipework.serve.schemas import explain

HEAD_LENGTH = "Inference-Header-Content-Length"
SIZE = "binary_data_size"
MOST = 2**31 - 1  # of a dimension; numbers of thousands of digits cost time to read and to print


class _Part(BaseModel):
    # What is unknown is passed over: clients of later versions may say more.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class InputTensor(_Part):
    """A tensor in a request; its data here, or behind the JSON as `binary_data_size` bytes."""

    name: str
    shape: list[Annotated[int, Field(ge=0, le=MOST)]]
    datatype: str
    parameters: dict[str, Value] = {}
    data: list[str] | list[list[str]] | None = None


class OutputTensor(_Part):
    """A tensor that is asked for."""

    name: str
    parameters: dict[str, Value] = {}


class InferRequest(_Part):
    """The JSON of a request."""

    id: str = ""
    parameters: dict[str, Value] = {}
    inputs: Annotated[list[InputTensor], Field(min_length=1)]
    outputs: list[OutputTensor] | None = None


def read_infer(
    body: bytes, head_length: str | None, names: Sequence[str], limits: LimitSettings | None = None
) -> Asked:
    """Read a request.

    Args:
        body: JSON, and behind it the bytes of those tensors that have their data there.
        head_length: how many bytes the JSON has, as the header says; None for all.
        names: of the inputs that the model takes.
        limits: of which the number of texts is looked at here, before they are read.

    Raises:
        ProtocolError: the request is not one; the message says where.
        TooLargeError: there are too many texts.
    """
    end = _head_end(head_length, len(body))
    try:
        request = InferRequest.model_validate_json(body[:end])
    except ValidationError as error:
        raise ProtocolError(_said(error)) from error
    found = _inputs(request, memoryview(body)[end:], limits or LimitSettings())
    return Asked(
        id=request.id,
        texts=read_texts(found, names),
        outputs=_outputs(request),
        timeout_us=read_number(request.parameters, "timeout"),
        priority=read_number(request.parameters, "priority"),
    )


def _head_end(given: str | None, length: int) -> int:
    if given is None:
        return length
    digits = given.isascii() and given.isdigit() and len(given) < len(str(MOST))
    if not (digits and int(given) <= length):
        shown = given[:20]
        message = f"{HEAD_LENGTH}: expected a number of bytes up to {length}, found {shown!r}"
        raise ProtocolError(message)
    return int(given)


def _said(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"body: not JSON in UTF-8: {first['ctx']['error']}"
    return explain(error)


def _inputs(
    request: InferRequest, rest: memoryview, limits: LimitSettings
) -> dict[str, list[bytes]]:
    """Return the elements of each tensor, by its name."""
    found: dict[str, list[bytes]] = {}
    for tensor in request.inputs:
        check_tensor(tensor.name, tensor.datatype, tensor.shape, found)
        size = _size(tensor, len(rest))
        if size is None:
            found[tensor.name] = _from_json(tensor)
        else:
            found[tensor.name] = elements(rest[:size], tensor.name, enough(tensor.shape, limits))
            rest = rest[size:]
        check_count(tensor.name, tensor.shape, len(found[tensor.name]), limits)
    if rest:
        message = f"body: {len(rest)} bytes are left that no input's {SIZE} counts"
        raise ProtocolError(message)
    return found


def _size(tensor: InputTensor, left: int) -> int | None:
    size = tensor.parameters.get(SIZE)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        message = (
            f"input {shown(tensor.name)}: expected a {SIZE} of 0 to {left}, found {size!r:.20}"
        )
        raise ProtocolError(message)
    if tensor.data is not None:
        message = f"input {shown(tensor.name)}: found both data and {SIZE}"
        raise ProtocolError(message)
    return size


def _from_json(tensor: InputTensor) -> list[bytes]:
    if tensor.data is None:
        message = f"input {shown(tensor.name)}: found neither data nor {SIZE}"
        raise ProtocolError(message)
    flat = (one if isinstance(one, list) else [one] for one in tensor.data)
    return [text.encode() for row in flat for text in row]


def _outputs(request: InferRequest) -> dict[str, Wanted]:
    as_bytes = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return dict.fromkeys(OUTPUTS, Wanted(as_bytes=as_bytes))
    return {
        one.name: read_wanted(
            one.name,
            one.parameters,
            as_bytes=one.parameters.get("binary_data", as_bytes) is True,
        )
        for one in request.outputs
    }
