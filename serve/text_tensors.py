"""What a model of texts takes and gives as tensors, by the names of the Open Inference Protocol.

The same on Triton and on our own server: `text` (and `text_pair`) in; `label`, `score`,
`probabilities` and `logits` out.

Shapes: N texts, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, fitting
from pipework.errors import InputError, TooLargeError
from pipework.run_folder.manifest import Input
from pipework.run_folder.task import Task
from pipework.scoring.predictions import (
    OneLabel,
    Prediction,
    SeveralLabels,
    Value,
    decide,
    probabilities,
)

TEXT, TEXT_PAIR = "text", "text_pair"
MAX_CHARACTERS = 100_000  # of a text, on Triton as on our own server


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Texts:
    """The inputs of a request: UTF-8 bytes of N texts and, for a model of pairs, of N others."""

    text: Sequence[bytes]
    text_pair: Sequence[bytes] | None = None

    def examples(self, given: Input) -> list[Example]:
        """Return the inputs as the model takes them.

        Raises:
            InputError: a text that is not UTF-8, or not what the model takes; the message names
                it by its number in the request, from 0.
            TooLargeError: a text is longer than MAX_CHARACTERS.
        """
        texts = [_decoded(text, TEXT, row) for row, text in enumerate(self.text)]
        pairs: list[str | None] = [None] * len(texts)
        if self.text_pair is not None:
            pairs = [_decoded(text, TEXT_PAIR, row) for row, text in enumerate(self.text_pair)]
        return [
            fitting(Example(text=text, text_pair=pair), given, f"input {row}")
            for row, (text, pair) in enumerate(zip(texts, pairs, strict=True))
        ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answer:
    """What N texts are answered.

    Attributes:
        label_N: UTF-8 bytes of the label; several are joined as `pipe predict` prints them, and
            it is empty where none is given, as in a regression.
        score_N: float32, of the label with the highest probability; of a regression, its value.
        probabilities_NC: float32, as `pipework.scoring.predictions.probabilities` gives them.
        logits_NC: float32.
        labels_C: what the classes are called.
    """

    label_N: NDArray[np.object_]
    score_N: NDArray[np.float32]
    probabilities_NC: NDArray[np.float32]
    logits_NC: NDArray[np.float32]
    labels_C: tuple[str, ...]

    @classmethod
    def of(cls, logits_NC: NDArray[np.float32], task: Task) -> "Answer":
        """Decide what the logits say."""
        probabilities_NC = probabilities(logits_NC, task)
        labels = [_label(prediction).encode() for prediction in decide(logits_NC, task, top_k=1)]
        return cls(
            label_N=np.array(labels, np.object_),
            score_N=probabilities_NC.max(axis=1, initial=-np.inf),
            probabilities_NC=probabilities_NC,
            logits_NC=logits_NC,
            labels_C=task.labels,
        )

    def rows(self, start: int, stop: int) -> "Answer":
        """Return the answer to some of the texts."""
        return Answer(
            label_N=self.label_N[start:stop],
            score_N=self.score_N[start:stop],
            probabilities_NC=self.probabilities_NC[start:stop],
            logits_NC=self.logits_NC[start:stop],
            labels_C=self.labels_C,
        )

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Return the tensors by name; the first dimension of each is N, and no shape is [N]."""
        return {
            "label": self.label_N[:, None],
            "score": self.score_N[:, None],
            "probabilities": self.probabilities_NC,
            "logits": self.logits_NC,
        }


def _label(prediction: Prediction) -> str:
    match prediction:
        case OneLabel(label=label):
            return label
        case SeveralLabels():
            return prediction.words()[0]
        case Value():
            return ""


def _decoded(text: bytes, name: str, row: int) -> str:
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        message = f"input {row}: {name} is not UTF-8: {error.reason} at byte {error.start}"
        raise InputError(message) from error
    if len(decoded) > MAX_CHARACTERS:
        found = len(decoded)
        message = f"input {row}: expected at most {MAX_CHARACTERS} characters, found {found}"
        raise TooLargeError(message)
    return decoded
