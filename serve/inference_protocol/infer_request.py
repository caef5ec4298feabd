"""What a request of the protocol asks, whichever door it came through.

Shapes: N texts, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pipework.errors import TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.metadata import BYTES, output_forms
from pipework.serve.inference_protocol.tensors import ProtocolError, shown
from pipework.serve.request.options import Terms
from pipework.serve.text_tensors import TEXT, TEXT_PAIR, Texts

Value = str | int | float | bool
Parameters = Mapping[str, Value]
OUTPUTS = tuple(form.name for form in output_forms(1))
RANKED = ("probabilities", "logits")  # what can be asked for as classifications
DAY_US = 86_400_000_000  # whoever gives more time than a day gives any


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How a tensor is asked for.

    Attributes:
        as_bytes: rather than in JSON.
        best: so many classes of each text in words, the best first; 0 for the tensor itself.
    """

    as_bytes: bool
    best: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks.

    Attributes:
        id: the client's own, given back.
        texts: N texts, or pairs.
        outputs: the tensors to answer with, by name.
        timeout_us: microseconds after which nobody waits for the answer; 0 for never.
        priority: 1 for a request that somebody waits for, more for bulk, 0 for what is usual.
    """

    id: str
    texts: Texts
    outputs: Mapping[str, Wanted]
    timeout_us: int = 0
    priority: int = 0

    def terms(self, given: Terms) -> Terms:
        """Return the terms that the door knows, with what the request says: the sooner deadline.

        https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_schedule_policy.md
        """
        bulk = self.priority > 1 if self.priority else given.bulk
        if not self.timeout_us:
            return Terms(deadline_s=given.deadline_s, bulk=bulk)
        own = Terms.within(min(self.timeout_us, DAY_US) / 1e6, bulk=bulk)
        ends_s = [one.deadline_s for one in (given, own) if one.deadline_s is not None]
        return Terms(deadline_s=min(ends_s), bulk=bulk)


def check_tensor(
    name: str, datatype: str, shape: Sequence[int], seen: Mapping[str, object]
) -> None:
    """Check that an input is of texts, and not one of those seen before.

    Raises:
        ProtocolError: it is not.
    """
    if name in seen:
        message = f"input {shown(name)}: found twice"
        raise ProtocolError(message)
    if datatype != BYTES:
        message = f"input {shown(name)}: expected datatype {BYTES}, found {datatype[:20]!r}"
        raise ProtocolError(message)
    if len(shape) not in {1, 2} or [*shape[1:]] not in ([], [1]):
        message = f"input {shown(name)}: expected shape [N] or [N, 1], found {[*shape[:8]]}"
        raise ProtocolError(message)


def enough(shape: Sequence[int], limits: LimitSettings) -> int:
    """Return after how many elements of an input its fault is certain, so that no more is read."""
    return max(0, min(prod(shape), limits.texts))


def check_count(name: str, shape: Sequence[int], count: int, limits: LimitSettings) -> None:
    """Check that an input has as many elements as its shape says, and not too many.

    Raises:
        ProtocolError: it has not.
        TooLargeError: there are too many.
    """
    if count > limits.texts:
        check_number(prod(shape), limits)
    if count != prod(shape):
        text = "more" if 0 <= prod(shape) < count else count
        message = f"input {shown(name)}: expected {[*shape]} elements, found {text}"
        raise ProtocolError(message)


def read_texts(found: Mapping[str, list[bytes]], names: Sequence[str]) -> Texts:
    """Return the inputs of a request as texts.

    Args:
        found: the elements of each tensor, by its name.
        names: of the inputs that the model takes.

    Raises:
        ProtocolError: they are not what the model takes.
    """
    expected = " and ".join(names)
    if {*found} != {*names}:
        message = f"inputs: expected {expected}, found {', '.join(map(shown, found))[:100]}"
        raise ProtocolError(message)
    pairs = found.get(TEXT_PAIR)
    if pairs is not None and len(pairs) != len(found[TEXT]):
        message = f"inputs: {len(found[TEXT])} of {TEXT}, but {len(pairs)} of {TEXT_PAIR}"
        raise ProtocolError(message)
    return Texts(text=found[TEXT], text_pair=pairs)


def check_number(found: int, limits: LimitSettings) -> None:
    """Check the number of texts.

    Raises:
        TooLargeError: there are too many.
    """
    if found > limits.texts:
        message = f"inputs: expected at most {limits.texts} texts, found {found}"
        raise TooLargeError(message, "send several requests")


def check_texts(texts: Texts, limits: LimitSettings) -> None:
    """Check the number of texts and their lengths.

    Raises:
        TooLargeError: naming what is too large, and the limit.
    """
    found = len(texts.text)
    check_number(found, limits)
    for row, text in enumerate((*texts.text, *(texts.text_pair or ()))):
        # No text has more characters than bytes, so few are looked at.
        if len(text) > limits.characters and _characters(text) > limits.characters:
            length = _characters(text)
            message = (
                f"input {row % found}: expected at most {limits.characters} characters, "
                f"found {length}"
            )
            raise TooLargeError(message)


def read_wanted(name: str, parameters: Parameters, *, as_bytes: bool) -> Wanted:
    """Return how an output is asked for.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md

    Raises:
        ProtocolError: there is no such output, or none of classes where those are asked for.
    """
    if name not in OUTPUTS:
        message = f"output {name[:50]!r}: there is none; there are {', '.join(OUTPUTS)}"
        raise ProtocolError(message)
    best = read_number(parameters, "classification", f"output {name}: ")
    if best and name not in RANKED:
        message = f"output {name}: classification is offered of {' and '.join(RANKED)}"
        raise ProtocolError(message)
    return Wanted(as_bytes=as_bytes, best=best)


def read_number(parameters: Parameters, name: str, where: str = "") -> int:
    """Return a parameter that counts something, 0 where it is not given.

    Raises:
        ProtocolError: it is no number, or less than 0.
    """
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        message = f"{where}parameter {name}: expected a whole number from 0, found {value!r:.20}"
        raise ProtocolError(message)
    return value


def _characters(text: bytes) -> int:
    return len(text.decode(errors="replace"))
