"""A request of the protocol becomes texts, and says which outputs it wants and how.

Shapes: N texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.inference_protocol.tensors import ProtocolError, elements
from serve.schemas import explain
from serve.text_tensors import TEXT, TEXT_PAIR, Texts

HEAD_LENGTH = "Inference-Header-Content-Length"
SIZE = "binary_data_size"
MOST = 2**31 - 1  # of a dimension; numbers of thousands of digits cost time to read and to print
Parameters = dict[str, str | int | float | bool]


class _Part(BaseModel):
    # What is unknown is passed over: clients of later versions may say more.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class InputTensor(_Part):
    """A tensor in a request; its data here, or behind the JSON as `binary_data_size` bytes."""

    name: str
    shape: list[Annotated[int, Field(ge=0, le=MOST)]]
    datatype: str
    parameters: Parameters = {}
    data: list[str] | list[list[str]] | None = None


class OutputTensor(_Part):
    """A tensor that is asked for."""

    name: str
    parameters: Parameters = {}


class InferRequest(_Part):
    """The JSON of a request."""

    id: str = ""
    parameters: Parameters = {}
    inputs: Annotated[list[InputTensor], Field(min_length=1)]
    outputs: list[OutputTensor] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks.

    Attributes:
        id: the client's own, given back.
        texts: N texts, or pairs.
        outputs: the tensors to answer with, and of each whether as bytes; None for all.
        as_bytes: whether outputs that do not say go as bytes.
    """

    id: str
    texts: Texts
    outputs: Mapping[str, bool] | None
    as_bytes: bool


def read_infer(body: bytes, head_length: str | None, names: Sequence[str]) -> Asked:
    """Read a request.

    Args:
        body: JSON, and behind it the bytes of those tensors that have their data there.
        head_length: how many bytes the JSON has, as the header says; None for all.
        names: of the inputs that the model takes.

    Raises:
        ProtocolError: the request is not one; the message says where.
    """
    end = _head_end(head_length, len(body))
    try:
        request = InferRequest.model_validate_json(body[:end])
    except ValidationError as error:
        raise ProtocolError(_said(error)) from error
    found = _inputs(request, memoryview(body)[end:])
    as_bytes = request.parameters.get("binary_data_output") is True
    return Asked(
        id=request.id,
        texts=_texts(found, names),
        outputs=_outputs(request.outputs, default=as_bytes) if request.outputs else None,
        as_bytes=as_bytes,
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


def _inputs(request: InferRequest, rest: memoryview) -> dict[str, list[bytes]]:
    """Return the elements of each tensor, by its name."""
    found: dict[str, list[bytes]] = {}
    for tensor in request.inputs:
        if tensor.name in found:
            message = f"input {tensor.name}: found twice"
            raise ProtocolError(message)
        _check_form(tensor)
        size = _size(tensor, len(rest))
        if size is None:
            found[tensor.name] = _from_json(tensor)
        else:
            found[tensor.name] = elements(rest[:size], tensor.name)
            rest = rest[size:]
        count = len(found[tensor.name])
        if count != prod(tensor.shape):
            message = f"input {tensor.name}: expected {tensor.shape} elements, found {count}"
            raise ProtocolError(message)
    if rest:
        message = f"body: {len(rest)} bytes are left that no input's {SIZE} counts"
        raise ProtocolError(message)
    return found


def _check_form(tensor: InputTensor) -> None:
    if tensor.datatype != "BYTES":
        message = f"input {tensor.name}: expected datatype BYTES, found {tensor.datatype[:20]!r}"
        raise ProtocolError(message)
    if len(tensor.shape) not in {1, 2} or tensor.shape[1:] not in ([], [1]):
        message = f"input {tensor.name}: expected shape [N] or [N, 1], found {tensor.shape[:8]}"
        raise ProtocolError(message)


def _size(tensor: InputTensor, left: int) -> int | None:
    size = tensor.parameters.get(SIZE)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        message = f"input {tensor.name}: expected a {SIZE} of 0 to {left}, found {size!r:.20}"
        raise ProtocolError(message)
    if tensor.data is not None:
        message = f"input {tensor.name}: found both data and {SIZE}"
        raise ProtocolError(message)
    return size


def _from_json(tensor: InputTensor) -> list[bytes]:
    if tensor.data is None:
        message = f"input {tensor.name}: found neither data nor {SIZE}"
        raise ProtocolError(message)
    flat = (one if isinstance(one, list) else [one] for one in tensor.data)
    return [text.encode() for row in flat for text in row]


def _texts(found: Mapping[str, list[bytes]], names: Sequence[str]) -> Texts:
    expected = " and ".join(names)
    if {*found} != {*names}:
        message = f"inputs: expected {expected}, found {', '.join(found)[:100]}"
        raise ProtocolError(message)
    pairs = found.get(TEXT_PAIR)
    if pairs is not None and len(pairs) != len(found[TEXT]):
        message = f"inputs: {len(found[TEXT])} of {TEXT}, but {len(pairs)} of {TEXT_PAIR}"
        raise ProtocolError(message)
    return Texts(text=found[TEXT], text_pair=pairs)


def _outputs(asked: Sequence[OutputTensor], *, default: bool) -> dict[str, bool]:
    for one in asked:
        if "classification" in one.parameters:
            message = f"output {one.name}: classification is not offered"
            raise ProtocolError(message, "ask for label, score or probabilities")
    return {one.name: one.parameters.get("binary_data", default) is True for one in asked}
