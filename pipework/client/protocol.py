"""Common base of the HTTP and gRPC transports: selects the model and reads its class names.

Shapes: N texts, C classes.
"""

import struct
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from pipework.client.address import ServerUrl
from pipework.client.tensors import (
    OUTPUTS,
    InferOutputs,
    ProtocolResponse,
    Tensors,
    label_names,
    predictions,
    tensors,
)
from pipework.client.transport import Transport, name_hint, not_one_model, one_line
from pipework.errors import InputError, PipeError, UnknownModelError
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.tasks.predictions import Prediction
from pipework.wire.schemas import PredictRequest
from pipework.wire.text_tensors import TEXT

MODEL_HINT = "is it a model of pipework?"
ATTEMPTS = 5  # to read the class names of the version that responded, during a switch of versions


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTensors:
    """Names of the input and output tensors of a model."""

    inputs: Collection[str]
    outputs: Collection[str]

    @property
    def of_texts(self) -> bool:
        """Whether the model takes texts and has the outputs that the client needs."""
        return TEXT in self.inputs and {*OUTPUTS} <= {*self.outputs}


class ProtocolTransport(Transport):
    """Base class of transports for the protocol. Subclasses send the tensors."""

    def __init__(self, url: ServerUrl) -> None:
        """Set the URL; no request is sent yet."""
        self._url = url
        self._lock = Lock()
        self._checked: dict[tuple[str, str], str] = {}  # requested name and version -> model
        self._labels: dict[tuple[str, str], tuple[str, ...]] = {}  # model and version -> labels

    def predict(self, request: PredictRequest) -> list[Prediction]:
        """Send a request and return its predictions."""
        inputs = tensors(request.examples())
        version = request.version or self._url.version
        model = self._model(request.model or self._url.model, version)
        for _ in range(ATTEMPTS):
            with _reading_response(model):
                response = self._infer(model, version, inputs, dict.fromkeys(OUTPUTS, 0))
                outputs = InferOutputs.of(response)
                outputs.check(len(inputs[TEXT]))
            if outputs.decoded is not None:
                return predictions(outputs, (), request.top_k)
            names_C = self._names(model, version, inputs, outputs)
            if names_C is not None:
                return predictions(outputs, names_C, request.top_k)
        message = f"the class names of model {model} are those of another version"
        raise PipeError(message, "versions are being switched: retry, or name a version")

    def read_options(self) -> TrainingReadOptions:
        """Return the columns of data files, which have the names of the model's inputs."""
        model = self._model(self._url.model, self._url.version)
        return TrainingReadOptions.of_inputs(self._describe(model, self._url.version).inputs)

    @abstractmethod
    def _send(
        self, model: str, version: str, inputs: Tensors, outputs: Mapping[str, int]
    ) -> ProtocolResponse:
        """Send a request for these outputs and return the response.

        The value of an output is 0 for its tensor, or the number of the best classes of each text,
        for a tensor of `value:index:label`.

        Raises:
            InputError: the server does not support classifications.
        """

    @abstractmethod
    def _describe(self, model: str, version: str) -> ModelTensors:
        """Return the input and output names of a model."""

    @abstractmethod
    def _models(self) -> Sequence[str]:
        """Return the names of the models that are ready."""

    def _infer(
        self, model: str, version: str, inputs: Tensors, outputs: Mapping[str, int]
    ) -> ProtocolResponse:
        response = self._send(model, version, inputs, outputs)
        missing = sorted({*outputs} - {*response.tensors})
        if missing:
            message = f"the response of model {model} lacks {', '.join(missing)}"
            raise PipeError(message, MODEL_HINT)
        return response

    def _model(self, name: str, version: str) -> str:
        with self._lock:  # so that concurrent first requests check the model once
            if (name, version) not in self._checked:
                model = name or self._only_model()
                if not self._describe(model, version).of_texts:
                    expected = f"input {TEXT} and outputs {', '.join(OUTPUTS)}"
                    message = f"model {model} does not have {expected}"
                    raise UnknownModelError(message, MODEL_HINT)
                self._checked[name, version] = model
            return self._checked[name, version]

    def _only_model(self) -> str:
        try:
            names = self._models()
        except (InputError, UnknownModelError) as error:  # it has no such endpoint
            message = f"{self._url.url} does not list its models: {error}"
            raise UnknownModelError(message, name_hint(self._url.url)) from error
        texts = [name for name in names if TEXT in self._describe(name, "").inputs]
        if len(texts) != 1:
            raise not_one_model(self._url.url, texts)
        return texts[0]

    def _names(
        self, model: str, version: str, inputs: Tensors, outputs: InferOutputs
    ) -> tuple[str, ...] | None:
        """Return the class names of the version that responded; () if the server has none.

        None if another version responds now.
        """
        with self._lock:
            if (model, outputs.version) not in self._labels:
                first = {name: values[:1] for name, values in inputs.items()}
                best = {OUTPUTS[-1]: outputs.probabilities_NC.shape[1]}
                try:
                    with _reading_response(model):
                        response = self._infer(model, version, first, best)
                        names = label_names(response.tensors[OUTPUTS[-1]].read())
                        self._labels[model, response.version] = names
                except InputError:  # not about the text: the server has accepted that already
                    self._labels[model, outputs.version] = ()
            return self._labels.get((model, outputs.version))


@contextmanager
def _reading_response(model: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, struct.error) as error:
        message = f"the tensors in the response of model {model} cannot be read: {error}"
        raise PipeError(one_line(message), MODEL_HINT) from error
