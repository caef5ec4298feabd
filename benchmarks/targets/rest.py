"""Target for `/v1/predict`, the REST endpoint of `pipe serve`."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipework.benchmarks.targets.http import HttpTarget
from pipework.data.examples import Example
from pipework.serve.schemas import PREDICT_PATH, TextInput

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RestTarget(HttpTarget):
    """Server of `pipe serve`, called by its REST endpoint."""

    @property
    def path(self) -> str:
        """Path of its endpoint."""
        return PREDICT_PATH

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a request with "texts", or with "inputs" for pairs and marked entities."""
        content: object = {"texts": [example.text for example in examples]}
        if any(
            example.text_pair is not None or example.entities is not None for example in examples
        ):
            inputs = (TextInput.of(example).model_dump(exclude_none=True) for example in examples)
            content = {"inputs": [*inputs]}
        return self.post(json.dumps(content, ensure_ascii=False).encode(), JSON)

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts.

        Raises:
            PipeError: the response does not contain `count` predictions.
        """
        with suppress(ValueError, LookupError, TypeError):
            content = json.loads(response)
            if len(content["predictions"]) == count:
                return str(content["model"])
        expected = f"{count} predictions"
        raise self.unexpected_response(expected)
