"""Our own door: `/v1/predict`."""

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
    """`pipe serve`, by its simple protocol."""

    @property
    def path(self) -> str:
        """Where it is asked."""
        return PREDICT_PATH

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a request of texts, or of inputs where they are more than that."""
        content: object = {"texts": [one.text for one in examples]}
        if any(one.text_pair is not None or one.entities is not None for one in examples):
            inputs = (TextInput.of(one).model_dump(exclude_none=True) for one in examples)
            content = {"inputs": [*inputs]}
        return self.post(json.dumps(content, ensure_ascii=False).encode(), JSON)

    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the model that gave an answer to `count` texts.

        Raises:
            PipeError: it is not an answer to so many.
        """
        with suppress(ValueError, LookupError, TypeError):
            content = json.loads(answer)
            if len(content["predictions"]) == count:
                return str(content["model"])
        expected = f"{count} predictions"
        raise self.wrong(expected)
