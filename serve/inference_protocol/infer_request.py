"""A parsed inference request of the protocol, from HTTP or gRPC, its checks, and tensors as bytes.

BYTES elements have a length prefix, FP32 is raw. All numbers are little-endian.

Shapes: N texts, C classes.
"""

import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from pipework.errors import InputError
from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.metadata import BYTES, output_specs
from pipework.serve.request.context import RequestOptions
from pipework.wire.text_tensors import ROWS, TEXT, TEXT_PAIR, InputTexts

# A model has two inputs and four outputs, and clients send a few parameters. More are an attack:
# each takes time before the request can be rejected.
MAX_TENSORS, MAX_PARAMETERS, MAX_DIMENSIONS = 16, 64, 8
Value = str | int | float | bool
Parameters = Mapping[str, Value]
OUTPUTS = tuple(form.name for form in output_specs(1))
NAMES = (*OUTPUTS, ROWS)  # rows only of models with rows for each token
RANKED = ("probabilities", "logits")  # outputs for which clients may request classifications
# Parameter of a tensor of Triton's shared memory extensions, which this server does not announce.
SHARED_MEMORY = "shared_memory_region"
LENGTH = struct.Struct("<I")  # of an element of a BYTES tensor
DAY_US = 86_400_000_000  # longer timeouts are treated as a day


def _few(parameters: object) -> object:
    if isinstance(parameters, dict) and len(parameters) > MAX_PARAMETERS:
        message = f"expected at most {MAX_PARAMETERS} parameters, found {len(parameters)}"
        raise ValueError(message)
    return parameters


JsonParameters = Annotated[dict[str, Value], BeforeValidator(_few)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedOutput:
    """The form in which a client requests an output.

    Attributes:
        as_bytes: as binary data instead of JSON.
        best: number of top classes per text to return as classifications; 0 for the tensor.
    """

    as_bytes: bool
    best: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedRequest:
    """A parsed inference request.

    Attributes:
        id: id of the client, repeated in the response.
        texts: N texts or pairs.
        outputs: the requested outputs by name.
        timeout_us: timeout in microseconds; 0 for none.
        priority: 1 for interactive, more for bulk, 0 for the default.
    """

    id: str
    texts: InputTexts
    outputs: Mapping[str, RequestedOutput]
    timeout_us: int = 0
    priority: int = 0

    def options(self, transport: RequestOptions) -> RequestOptions:
        """Combine the options of the transport and of the request: the sooner deadline.

        https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_schedule_policy.md
        """
        bulk = self.priority > 1 if self.priority else transport.bulk
        deadline_s = transport.deadline_s
        if self.timeout_us:
            own = RequestOptions.within(min(self.timeout_us, DAY_US) / 1e6)
            deadlines_s = [deadline_s, own.deadline_s]
            deadline_s = min(deadline for deadline in deadlines_s if deadline is not None)
        return RequestOptions(deadline_s=deadline_s, bulk=bulk, client=transport.client)


def check_tensor(
    name: str,
    datatype: str,
    shape: Sequence[int],
    parameters: Container[str],
    seen: Container[str],
) -> None:
    """Check that an input is a tensor of texts in the request and not a duplicate.

    Raises:
        ProtocolError: it is not a tensor of texts, it is in shared memory, or its name is in
            `seen`.
    """
    _check_place(f"input {printable(name)}", name, parameters, seen)
    if datatype != BYTES:
        message = f"input {printable(name)}: expected datatype {BYTES}, found {datatype[:20]!r}"
        raise ProtocolError(message)
    if len(shape) not in {1, 2} or [*shape[1:]] not in ([], [1]):
        message = f"input {printable(name)}: expected shape [N] or [N, 1], found {[*shape[:8]]}"
        raise ProtocolError(message)


def check_few(count: int, most: int, kind: str) -> None:
    """Check the number of inputs, outputs or parameters before they are read.

    Raises:
        ProtocolError: there are too many.
    """
    if count > most:
        message = f"expected at most {most} {kind}, found {count}"
        raise ProtocolError(message)


def elements_needed(shape: Sequence[int], limits: LimitSettings) -> int:
    """Return the number of elements to read: one more proves that the input has too many."""
    return max(0, min(prod(shape), limits.texts))


def check_count(name: str, shape: Sequence[int], count: int, limits: LimitSettings) -> None:
    """Check that the number of elements of an input matches its shape and the limit.

    Raises:
        ProtocolError: the number does not match the shape.
        TooLargeError: there are too many texts.
    """
    if count > limits.texts:
        limits.check_count(prod(shape))
    if count != prod(shape):
        text = "more" if 0 <= prod(shape) < count else count
        message = f"input {printable(name)}: expected {[*shape]} elements, found {text}"
        raise ProtocolError(message)


def read_texts(
    elements: Mapping[str, list[bytes]], names: Sequence[str], limits: LimitSettings
) -> InputTexts:
    """Return the inputs of a request as texts within the limits.

    Raises:
        ProtocolError: the model has other inputs.
        TooLargeError: a text is too long; `check_count` limits their number.
    """
    expected = " and ".join(names)
    if {*elements} != {*names}:
        message = f"inputs: expected {expected}, found {', '.join(map(printable, elements))[:100]}"
        raise ProtocolError(message)
    pairs = elements.get(TEXT_PAIR)
    if pairs is not None and len(pairs) != len(elements[TEXT]):
        message = f"inputs: {len(elements[TEXT])} of {TEXT}, but {len(pairs)} of {TEXT_PAIR}"
        raise ProtocolError(message)
    texts = elements[TEXT]
    for row, text in enumerate((*texts, *(pairs or ()))):
        limits.check_length(text, row % len(texts))
    return InputTexts(text=texts, text_pair=pairs)


def read_outputs(
    outputs: Iterable[tuple[str, Parameters]], *, as_bytes: bool
) -> dict[str, RequestedOutput]:
    """Return the requested outputs by name; all outputs if none is requested.

    Raises:
        ProtocolError: see `_read_output`; or a name is there twice.
    """
    requested: dict[str, RequestedOutput] = {}
    for name, parameters in outputs:
        binary = parameters.get("binary_data", as_bytes) is True
        requested[name] = _read_output(name, parameters, requested, as_bytes=binary)
    return requested or dict.fromkeys(OUTPUTS, RequestedOutput(as_bytes=as_bytes))


def _read_output(
    name: str, parameters: Parameters, seen: Container[str], *, as_bytes: bool
) -> RequestedOutput:
    """Read the form of a requested output.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md

    Raises:
        ProtocolError: there is no such output, it does not support classification, it is wanted in
            shared memory, or its name is in `seen`.
    """
    if name not in NAMES:
        message = f"unknown output {name[:50]!r}; the outputs are {', '.join(OUTPUTS)}"
        raise ProtocolError(message)
    _check_place(f"output {name}", name, parameters, seen)
    best = read_number(parameters, "classification", f"output {name}: ")
    if best and name not in RANKED:
        message = f"output {name}: classification is supported for {' and '.join(RANKED)}"
        raise ProtocolError(message)
    return RequestedOutput(as_bytes=as_bytes, best=best)


def _check_place(where: str, name: str, parameters: Container[str], seen: Container[str]) -> None:
    """Check that a tensor is named once and its data are in the request or response."""
    if name in seen:
        message = f"{where}: found twice"
        raise ProtocolError(message)
    if SHARED_MEMORY in parameters:
        message = f"{where}: expected its data in the message, found {SHARED_MEMORY}"
        raise ProtocolError(message, "this server has no shared memory extension")


def read_number(parameters: Parameters, name: str, where: str = "") -> int:
    """Return an integer parameter, 0 if it is missing.

    Raises:
        ProtocolError: it is not an integer, or negative.
    """
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        message = f"{where}parameter {name}: expected a whole number from 0, found {value!r:.20}"
        raise ProtocolError(message)
    return value


class ProtocolError(InputError):
    """A request does not follow the protocol."""

    http_status = 400


def printable(name: str) -> str:
    """Return a client's name shortened and escaped, for use in a one-line message."""
    return name[:50] if name.isprintable() else repr(name[:50])


def elements(packed: memoryview, name: str, most: int) -> list[bytes]:
    """Return the elements of a BYTES tensor; reading stops after `most` + 1 elements.

    Raises:
        ProtocolError: an element is longer than the rest of the tensor.
    """
    values: list[bytes] = []
    start = 0
    while start < len(packed) and len(values) <= most:
        data = start + LENGTH.size
        length = LENGTH.unpack_from(packed, start)[0] if data <= len(packed) else 0
        if data + length > len(packed):
            left = len(packed) - start
            message = (
                f"input {printable(name)}: element {len(values)} is truncated: expected "
                f"{LENGTH.size} + {length} bytes, found {left}"
            )
            raise ProtocolError(message)
        values.append(bytes(packed[data : data + length]))
        start = data + length
    return values


def packed(array: NDArray[np.generic]) -> bytes:
    """Return a tensor of bytes objects, int64 or float32 as bytes."""
    if array.dtype == np.object_:
        return b"".join(LENGTH.pack(len(text)) + text for text in array.ravel().tolist())
    form = "<i8" if array.dtype == np.int64 else "<f4"
    return np.ascontiguousarray(array, form).tobytes()


def json_values(array: NDArray[np.generic]) -> Sequence[str | float]:
    """Return the elements of a tensor as JSON values, in row-major order."""
    values: list[Any] = array.ravel().tolist()
    if array.dtype == np.object_:
        return [text.decode() for text in values]
    return values


def datatype(array: NDArray[np.generic]) -> str:
    """Return the protocol's name for the type of a tensor."""
    match array.dtype:
        case np.object_:
            return "BYTES"
        case np.int64:
            return "INT64"
        case _:
            return "FP32"
