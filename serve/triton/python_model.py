"""The Python model for Triton, which the `model.py` of an exported repository imports.

Triton's Python backend imports it in a process of its own. Only that process has the module
`triton_python_backend_utils`, whose classes are added after this import. Interface:
https://github.com/triton-inference-server/python_backend#usage
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.errors import InputError, NotReadyError, PipeError
from pipework.predict.text_model import EngineModel
from pipework.run_folder.manifest import read_classifier
from pipework.scoring.evaluation import Engine
from pipework.serve.engines import open_proven
from pipework.serve.engines.base import Arrays
from pipework.serve.engines.triton import FIRST_ONLY, TENSOR_MODEL, open_tensor_model
from pipework.wire.text_tensors import TEXT, TEXT_PAIR, InputTexts, OutputTensors


class TritonPythonModel:
    """Serves the run folder of a version: texts in, predictions out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the version; Triton reports an error here as the reason of a failed load."""
        version = args["model_version"]
        run = Path(args["model_repository"]) / version
        manifest = read_classifier(run)
        (record,) = manifest.engines
        config = json.loads(args["model_config"])
        parameters = config.get("parameters", {})
        if TENSOR_MODEL in parameters:
            name = parameters[TENSOR_MODEL]["string_value"]
            engine: Engine = open_tensor_model(
                run,
                manifest,
                partial(tensor_model_logits, name, int(version)),
                first_only=parameters[FIRST_ONLY]["string_value"] == "true",
                batch=config["max_batch_size"],
                model_folder=run.parents[1] / name / version,
            )
        else:
            engine = open_proven(run, manifest)
        self._model = EngineModel.open(run, manifest, engine)
        triton.Logger.log_info(f"{args['model_name']} {version} uses engine {record.name}")

    def execute(self, requests: "Sequence[triton.InferenceRequest]") -> list[object]:
        """Compute the requests of one dynamic batch in one call."""
        found: Sequence[OutputTensors | PipeError]
        try:
            found = answers(self._model, [_texts(request) for request in requests])
        except PipeError as error:  # the tensor model is not loaded, or its parity check failed
            found = [error] * len(requests)
        return [_response(answer) for answer in found]

    def finalize(self) -> None:
        """Free the engine."""
        self._model.close()


def tensor_model_logits(model: str, version: int, arrays: Arrays) -> NDArray[np.float32]:
    """Call a tensor model of the same server through Triton's business logic scripting.

    Raises:
        NotReadyError: the model is not loaded, or failed.
    """
    request = triton.InferenceRequest(
        model_name=model,
        model_version=version,
        requested_output_names=["logits"],
        inputs=[triton.Tensor(name, array) for name, array in arrays.items()],
        preferred_memory=triton.PreferredMemory(triton.TRITONSERVER_MEMORY_CPU, 0),
    )
    response = request.exec()
    if response.has_error():
        message = f"model {model} {version} failed: "
        raise NotReadyError(message + response.error().message())
    logits = triton.get_output_tensor_by_name(response, "logits").as_numpy()
    return np.asarray(logits, np.float32)


def _texts(request: "triton.InferenceRequest") -> InputTexts:
    tensors = {tensor.name(): tensor.as_numpy().ravel().tolist() for tensor in request.inputs()}
    return InputTexts(text=tensors[TEXT], text_pair=tensors.get(TEXT_PAIR))


def _response(answer: OutputTensors | PipeError) -> object:
    match answer:
        case OutputTensors():
            tensors = [triton.Tensor(*named) for named in answer.tensors().items()]
            if parameters := answer.parameters():
                with suppress(TypeError):  # Triton before 25.02 has no parameters of responses
                    return triton.InferenceResponse(tensors, parameters=parameters)
            return triton.InferenceResponse(tensors)
        case PipeError():
            return triton.InferenceResponse(error=triton.TritonError(answer.with_hint))


def answers(model: EngineModel, batch: Sequence[InputTexts]) -> list[OutputTensors | InputError]:
    """Return the outputs of each request, or its own error if its input is invalid."""
    parsed = [_read(model, texts) for texts in batch]
    examples = list[Example]()
    for request in parsed:
        if isinstance(request, list):
            examples += request
    found = model.infer(examples)
    whole = OutputTensors.of(found.outputs, model.codec.task, found.truncated, found.windows)
    answered: list[OutputTensors | InputError] = []
    start = 0
    for request in parsed:
        if isinstance(request, InputError):
            answered.append(request)
            continue
        answered.append(whole.rows(start, start + len(request)))
        start += len(request)
    return answered


def _read(model: EngineModel, texts: InputTexts) -> list[Example] | InputError:
    try:
        return texts.examples(model.codec.input)
    except InputError as error:
        return error
