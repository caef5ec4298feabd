"""Answers requests of texts together: one call of the tokenizer and one of the engine for all."""

from collections.abc import Sequence
from pathlib import Path

from pipework.closeable import Closing
from pipework.data.examples import Example
from pipework.errors import InputError
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.scoring.evaluation import Engine
from pipework.serve.text_tensors import Answer, Texts
from pipework.text.encoding import TextEncoder


class TextModel(Closing):
    """A run folder's tokenizer and task around an engine."""

    def __init__(self, run: Path, manifest: Manifest, engine: Engine) -> None:
        """Take over an engine, which is closed if the tokenizer does not open.

        Raises:
            RunFolderError: the tokenizer is missing or changed.
        """
        given = manifest.input
        try:
            verify_files(run, (given.tokenizer,))
            self._encoder = TextEncoder.open(
                run / given.tokenizer.path, max_length=given.max_length, type_ids=given.type_ids
            )
        except BaseException:
            engine.close()
            raise
        self._manifest = manifest
        self._engine = engine

    def answer(self, batch: Sequence[Texts]) -> list[Answer | InputError]:
        """Answer requests; one whose input is wrong is answered with that, and no other is."""
        read = [self._read(texts) for texts in batch]
        examples = [example for one in read if isinstance(one, list) for example in one]
        logits_NC = self._engine.infer(self._encoder.encode(examples))
        whole = Answer.of(logits_NC, self._manifest.task)
        answers: list[Answer | InputError] = []
        start = 0
        for one in read:
            if isinstance(one, InputError):
                answers.append(one)
                continue
            answers.append(whole.rows(start, start + len(one)))
            start += len(one)
        return answers

    def _read(self, texts: Texts) -> list[Example] | InputError:
        try:
            return texts.examples(self._manifest.input)
        except InputError as error:
            return error

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()
