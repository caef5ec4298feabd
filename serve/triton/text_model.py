"""Computes several text requests together, with one tokenizer call and one engine call."""

from collections.abc import Sequence
from pathlib import Path

from pipework.closeable import Closeable
from pipework.data.examples import Example
from pipework.errors import InputError
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.serve.text_tensors import InputTexts, OutputTensors
from pipework.text.encoding import open_encoder, truncated_rows


class TextModel(Closeable):
    """A run folder's tokenizer and task around an engine."""

    def __init__(self, run: Path, manifest: Manifest, engine: Engine) -> None:
        """Take ownership of an engine, which is closed if the tokenizer cannot be opened.

        Raises:
            RunFolderError: the tokenizer is missing or changed.
        """
        try:
            self._encoder = open_encoder(run, manifest)
        except BaseException:
            engine.close()
            raise
        self._manifest = manifest
        self._engine = engine

    def answer(self, batch: Sequence[InputTexts]) -> list[OutputTensors | InputError]:
        """Return the outputs of each request, or its own error if its input is invalid."""
        parsed = [self._read(texts) for texts in batch]
        examples = [
            example for request in parsed if isinstance(request, list) for example in request
        ]
        encodings = self._encoder.encode(examples)
        logits_NC = self._engine.infer(encodings)
        whole = OutputTensors.of(logits_NC, self._manifest.task, truncated_rows(encodings))
        answers: list[OutputTensors | InputError] = []
        start = 0
        for request in parsed:
            if isinstance(request, InputError):
                answers.append(request)
                continue
            answers.append(whole.rows(start, start + len(request)))
            start += len(request)
        return answers

    def _read(self, texts: InputTexts) -> list[Example] | InputError:
        try:
            return texts.examples(self._manifest.input)
        except InputError as error:
            return error

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()
