"""Text becomes token ids here and nowhere else, so that training and serving cannot drift apart.

Shapes: T tokens of one input, special tokens included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.errors import InputError, RunFolderError
from pipework.examples import Example, Span


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Encoding:
    """Token ids of one input, never padded: padding or packing is the engine's business.

    Attributes:
        ids: int32 [T].
        type_ids: int8 [T], 0 for the first text and 1 for the second, or None for a family
            that has none.
        entity_spans: the tokens [start, end) of the two entities, their marks included, or None
            for a task without entities.
    """

    ids: NDArray[np.int32]
    type_ids: NDArray[np.int8] | None
    entity_spans: tuple[Span, Span] | None = None

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)


class TextEncoder:
    """The tokenizer of a run with its limits. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, type_ids: bool) -> None:
        """Take over a tokenizer; its own settings of padding and truncation are replaced.

        Pairs are truncated longest text first, as BERT's and GLUE's reference code does.
        """
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length, strategy="longest_first")
        tokenizer.encode_special_tokens = True  # "[SEP]" written in a text is text
        self._tokenizer = tokenizer
        self.has_type_ids = type_ids
        self.max_length = max_length
        self.unknown_id: int | None = _unknown_id(tokenizer)

    @classmethod
    def open(cls, path: Path, *, max_length: int, type_ids: bool) -> "TextEncoder":
        """Open a `tokenizer.json`.

        Raises:
            RunFolderError: the file is missing or not a tokenizer.
        """
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            message = f"{path} is not a tokenizer: {error}"
            raise RunFolderError(message) from error
        return cls(tokenizer, max_length=max_length, type_ids=type_ids)

    def limited_to(self, max_length: int) -> "TextEncoder":
        """Return an encoder with the same tokenizer and another limit."""
        copy = Tokenizer.from_str(self._tokenizer.to_str())
        return TextEncoder(copy, max_length=max_length, type_ids=self.has_type_ids)

    def encode(self, examples: Sequence[Example]) -> list[Encoding]:
        """Encode inputs, each truncated to `max_length` tokens; an empty text is allowed.

        Raises:
            InputError: a text that cannot be UTF-8 (a lone surrogate).
        """
        texts = [
            example.text if example.text_pair is None else (example.text, example.text_pair)
            for example in examples
        ]
        try:
            encoded = self._tokenizer.encode_batch_fast(texts)
        except (TypeError, UnicodeEncodeError) as error:
            message = "a text is not valid Unicode: it holds a lone surrogate"
            raise InputError(message, "decode the bytes as UTF-8 before sending them") from error
        return [
            Encoding(
                ids=np.array(one.ids, np.int32),
                type_ids=np.array(one.type_ids, np.int8) if self.has_type_ids else None,
            )
            for one in encoded
        ]


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    unknown = getattr(tokenizer.model, "unk_token", None)
    return None if unknown is None else tokenizer.token_to_id(unknown)
