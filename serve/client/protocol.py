"""What both doors of the Open Inference Protocol share: which model, what its classes are called.

Shapes: N texts, C classes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from pipework.closing import Closing
from pipework.errors import InputError, PipeError, UnknownModelError
from pipework.predictions import Prediction
from serve.client.address import Address
from serve.client.tensors import WANTED, Found, Tensors, names_of, predictions, tensors
from serve.schemas import PredictRequest
from serve.text_tensors import TEXT


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A model: the names of its inputs, and how many classes it answers with; 0 for none."""

    inputs: tuple[str, ...]
    classes: int


class ProtocolDoor(Closing):
    """A Door to a server of the protocol. A subclass says how tensors are sent."""

    def __init__(self, address: Address) -> None:
        """Prepare; nothing is sent yet."""
        self._address = address
        self._lock = Lock()
        self._known: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}

    def ask(self, request: PredictRequest) -> list[Prediction]:
        """Return the answers to one request."""
        given = tensors(request.examples())
        asked = (request.model or self._address.model, request.version or self._address.version)
        with self._lock:  # once, however many threads ask first
            if asked not in self._known:
                model = asked[0] or self._only_model()
                self._known[asked] = (model, self._names(model, asked[1], given))
        model, names_C = self._known[asked]
        return predictions(self._infer(model, asked[1], given), names_C, request.top_k)

    @abstractmethod
    def _infer(self, model: str, version: str, given: Tensors) -> Found:
        """Return the answers to N texts."""

    @abstractmethod
    def _classify(self, model: str, version: str, given: Tensors, best: int) -> Sequence[str]:
        """Return the `best` classes of one text, as `value:index:label`.

        Raises:
            InputError: the server does not offer that.
        """

    @abstractmethod
    def _describe(self, model: str, version: str) -> Described:
        """Return what a model takes and gives."""

    @abstractmethod
    def _models(self) -> Sequence[str]:
        """Return the names of the models that are ready."""

    def _only_model(self) -> str:
        hint = f"name it: {self._address.url}/v2/models/NAME"
        try:
            names = self._models()
        except PipeError as error:
            message = f"{self._address.url} does not say which models it has: {error}"
            raise UnknownModelError(message, hint) from error
        texts = [name for name in names if TEXT in self._describe(name, "").inputs]
        if len(texts) != 1:
            known = ", ".join(texts) or "none"
            message = f"expected one model of texts at {self._address.url}, found {known}"
            raise UnknownModelError(message, hint)
        return texts[0]

    def _names(self, model: str, version: str, given: Tensors) -> tuple[str, ...]:
        described = self._describe(model, version)
        if TEXT not in described.inputs or not described.classes:
            message = f"model {model} does not take {TEXT} and give {', '.join(WANTED)}"
            raise UnknownModelError(message, "is it a model of pipework?")
        first = {name: values[:1] for name, values in given.items()}
        try:
            return names_of(self._classify(model, version, first, described.classes))
        except InputError:
            return ()  # what is wrong with the text itself, the request will tell
