"""Input and output tensors of a text classifier in the Open Inference Protocol.

They are the same on Triton and on this server. Inputs: `text` (and `text_pair`). Outputs: `label`,
`score`, `probabilities` and `logits`.

Shapes: N texts, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, fit_examples
from pipework.errors import InputError, TooLargeError
from pipework.run_folder.manifest import Input
from pipework.tasks.heads import HeadsTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task

TEXT, TEXT_PAIR = "text", "text_pair"
ROWS = "rows"
# Parameters of a response, separated by commas: the indices of the texts that were truncated, and
# the number of windows of each text.
TRUNCATED, WINDOWS = "truncated", "windows"
MAX_CHARACTERS = 100_000  # per text, on Triton and on this server


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InputTexts:
    """Inputs of a request: N texts as UTF-8 bytes, and N second texts for a pair model."""

    text: Sequence[bytes]
    text_pair: Sequence[bytes] | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of all texts."""
        return sum(map(len, (*self.text, *(self.text_pair or ()))))

    def examples(self, model_input: Input) -> list[Example]:
        """Return the inputs as examples, checked against the model's input.

        Raises:
            InputError: a text is not UTF-8 or does not fit the model; the message has its index
                in the request, from 0.
            TooLargeError: a text is longer than MAX_CHARACTERS.
        """
        texts = [_decoded(text, TEXT, row) for row, text in enumerate(self.text)]
        pairs: list[str | None] = [None] * len(texts)
        if self.text_pair is not None:
            pairs = [_decoded(text, TEXT_PAIR, row) for row, text in enumerate(self.text_pair)]
        examples = (
            Example(text=text, text_pair=pair) for text, pair in zip(texts, pairs, strict=True)
        )
        return [*fit_examples(examples, model_input)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OutputTensors:
    """Outputs for N texts.

    Attributes:
        label_N: label as UTF-8 bytes. Several labels are joined as in `pipe predict`; empty if
            there is no label, as for a regression, or if the model abstains without a fallback.
        score_N: float32, the highest probability; for a regression, its value.
        probabilities_RC: float32, from `Task.probabilities`, in the rows of the outputs.
        outputs: the logits.
        labels_C: names of the classes.
        truncated: indices of the texts that were longer than the model reads.
        windows: number of windows of each text; empty if each has one.
        rows_per_token: whether a text has a row for each of its tokens.
    """

    label_N: NDArray[np.object_]
    score_N: NDArray[np.float32]
    probabilities_RC: NDArray[np.float32]
    outputs: Outputs
    labels_C: tuple[str, ...]
    truncated: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    rows_per_token: bool = False

    @classmethod
    def of(
        cls,
        outputs: Outputs,
        task: Task,
        truncated: tuple[int, ...] = (),
        windows: tuple[int, ...] = (),
    ) -> "OutputTensors":
        """Compute the tensors from outputs."""
        probabilities_RC = task.probabilities(outputs.values)
        best_N = outputs.max_per_input(probabilities_RC.max(axis=1, initial=-np.inf))
        top_k = None if isinstance(task, HeadsTask) else 1  # the label has the scores of its heads
        predictions = task.decode(outputs, top_k)
        labels = [task.label_text(prediction).encode() for prediction in predictions]
        return cls(
            label_N=np.array(labels, np.object_),
            score_N=best_N.astype(np.float32, copy=False),
            probabilities_RC=probabilities_RC,
            outputs=outputs,
            labels_C=task.labels,
            truncated=truncated,
            windows=windows,
            rows_per_token=task.rows_per_token,
        )

    def rows(self, start: int, stop: int) -> "OutputTensors":
        """Return the outputs for a range of the texts."""
        probabilities = Outputs(self.probabilities_RC, self.outputs.offsets)
        return OutputTensors(
            label_N=self.label_N[start:stop],
            score_N=self.score_N[start:stop],
            probabilities_RC=probabilities.part(start, stop).values,
            outputs=self.outputs.part(start, stop),
            labels_C=self.labels_C,
            truncated=tuple(row - start for row in self.truncated if start <= row < stop),
            windows=self.windows[start:stop],
            rows_per_token=self.rows_per_token,
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the response, without empty ones."""
        windows = self.windows if any(count > 1 for count in self.windows) else ()
        numbers = {TRUNCATED: self.truncated, WINDOWS: windows}
        return {name: ",".join(map(str, some)) for name, some in numbers.items() if some}

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Return the tensors by name, each with two dimensions.

        The first dimension is N, and the number of rows R for `probabilities` and `logits`. Without
        one row for each text, `rows` has their numbers.
        """
        tensors: dict[str, NDArray[np.generic]] = {
            "label": self.label_N[:, None],
            "score": self.score_N[:, None],
            "probabilities": self.probabilities_RC,
            "logits": self.outputs.values,
        }
        if self.rows_per_token or not self.outputs.one_each:
            tensors[ROWS] = self.outputs.counts[:, None]
        return tensors


def _decoded(text: bytes, name: str, row: int) -> str:
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        message = f"input {row}: {name} is not UTF-8: {error.reason} at byte {error.start}"
        raise InputError(message) from error
    if len(decoded) > MAX_CHARACTERS:
        length = len(decoded)
        message = f"input {row}: expected at most {MAX_CHARACTERS} characters, found {length}"
        raise TooLargeError(message)
    return decoded
