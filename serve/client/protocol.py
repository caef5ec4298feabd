"""What both doors of the Open Inference Protocol share: which model, what its classes are called.

Shapes: N texts, C classes.
"""

import struct
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from pipework.closeable import Closing
from pipework.errors import InputError, PipeError, UnknownModelError
from pipework.scoring.predictions import Prediction
from pipework.serve.client.address import Address
from pipework.serve.client.tensors import WANTED, Found, Tensors, names_of, predictions, tensors
from pipework.serve.schemas import PredictRequest
from pipework.serve.text_tensors import TEXT

OURS = "is it a model of pipework?"
ATTEMPTS = 5  # to find the names of the version that answered, while versions are switched


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A model: the names of its inputs and outputs."""

    inputs: Collection[str]
    outputs: Collection[str]

    @property
    def of_texts(self) -> bool:
        """Whether it takes texts and answers with what is wanted."""
        return TEXT in self.inputs and {*WANTED} <= {*self.outputs}


@dataclass(frozen=True, kw_only=True, slots=True)
class Classified:
    """The classes of one text as `value:index:label`, and the version that answered."""

    version: str
    best: Sequence[str]


class ProtocolDoor(Closing):
    """A Door to a server of the protocol. A subclass says how tensors are sent."""

    def __init__(self, address: Address) -> None:
        """Prepare; nothing is sent yet."""
        self._address = address
        self._lock = Lock()
        self._checked: dict[tuple[str, str], str] = {}  # model and version asked: which model
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}  # model and version: its names

    def ask(self, request: PredictRequest) -> list[Prediction]:
        """Return the answers to one request."""
        given = tensors(request.examples())
        version = request.version or self._address.version
        model = self._model(request.model or self._address.model, version)
        for _ in range(ATTEMPTS):
            with _read_of(model):
                found = self._infer(model, version, given)
                found.check(len(given[TEXT]))
            names_C = self._names(model, version, given, found)
            if names_C is not None:
                return predictions(found, names_C, request.top_k)
        message = f"model {model} was answered by another version than the one that names classes"
        raise PipeError(message, "versions are being switched: ask again, or name one")

    @abstractmethod
    def _infer(self, model: str, version: str, given: Tensors) -> Found:
        """Return the answers to N texts."""

    @abstractmethod
    def _classify(self, model: str, version: str, given: Tensors, best: int) -> Classified:
        """Return the `best` classes of one text.

        Raises:
            InputError: the server does not offer that.
        """

    @abstractmethod
    def _describe(self, model: str, version: str) -> Described:
        """Return what a model takes and gives."""

    @abstractmethod
    def _models(self) -> Sequence[str]:
        """Return the names of the models that are ready."""

    def _model(self, name: str, version: str) -> str:
        with self._lock:  # once, however many threads ask first
            if (name, version) not in self._checked:
                model = name or self._only_model()
                if not self._describe(model, version).of_texts:
                    message = f"model {model} does not take {TEXT} and give {', '.join(WANTED)}"
                    raise UnknownModelError(message, OURS)
                self._checked[name, version] = model
            return self._checked[name, version]

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

    def _names(
        self, model: str, version: str, given: Tensors, found: Found
    ) -> tuple[str, ...] | None:
        """Return what the version that answered calls its classes; () where it does not say.

        None where another version answers now.
        """
        with self._lock:
            if (model, found.version) not in self._known:
                first = {name: values[:1] for name, values in given.items()}
                classes = found.probabilities_NC.shape[1]
                try:
                    with _read_of(model):
                        named = self._classify(model, version, first, classes)
                        self._known[model, named.version] = names_of(named.best)
                except InputError:  # not of the text, that has been answered
                    self._known[model, found.version] = ()
            return self._known.get((model, found.version))


@contextmanager
def _read_of(model: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, struct.error) as error:
        message = f"model {model} answered with tensors that cannot be read: {error}"
        raise PipeError(" ".join(message.split()), OURS) from error
