"""Text becomes token ids here and nowhere else, so that training and serving cannot drift apart.

Shapes: T tokens of one input, special tokens included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as Tokens
from tokenizers import Tokenizer

from pipework.data.entities import Spans
from pipework.data.examples import Example
from pipework.errors import ConfigError, InputError, RunFolderError
from pipework.text.special_tokens import Joint
from pipework.text.word_cache import Frame, Words, separable

MARKS = ("$", "#")  # around e1 and around e2, as in R-BERT (https://arxiv.org/abs/1905.08284)


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
    entity_spans: Spans | None = None

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """All tokens of a text, without special ones.

    Attributes:
        ids: int32 [T].
        words: int32 [T], the number of the word that a token is of.
    """

    ids: NDArray[np.int32]
    words: NDArray[np.int32]


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

        A text with two entities gets `$` around the first and `#` around the second. Where it is
        too long it loses the tokens that are farthest from these marks, which all stay.

        Raises:
            InputError: a text that cannot be UTF-8 (a lone surrogate).
            ConfigError: `max_length` has no room for the marks, or the tokenizer drops them; or it
                does not join two texts.
        """
        if any(example.entities is not None for example in examples):
            return [self._encode_marked(example) for example in examples]
        paired = [one for one in examples if one.text_pair is not None]
        texts = iter(self._encode_texts([one.text for one in examples if one.text_pair is None]))
        if not paired:
            return [*texts]
        pairs = iter(self._encode_pairs(paired))
        return [next(texts if one.text_pair is None else pairs) for one in examples]

    def _encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        if (frame := self._frame) is not None:
            return [
                self._encoding(*frame.around(ids, self.max_length)) for ids in self._whole(texts)
            ]
        with _Unicode():
            found = self._tokenizer.encode_batch_fast(texts)
        return [
            self._encoding(np.array(one.ids, np.int32), np.array(one.type_ids, np.int8))
            for one in found
        ]

    def _encode_pairs(self, examples: Sequence[Example]) -> list[Encoding]:
        texts = [text for one in examples for text in (one.text, one.text_pair or "")]
        whole = self._whole(texts)
        return [
            self._encoding(*self._joint.join(first, second, self.max_length))
            for first, second in zip(whole[::2], whole[1::2], strict=True)
        ]

    def _whole(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        if not texts:
            return []
        with _Unicode():
            if self._words is not None:
                return self._words.ids(texts)
            found = self._untruncated.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(one.ids, np.int32) for one in found]

    def _encoding(self, ids: NDArray[np.int32], type_ids: NDArray[np.int8]) -> Encoding:
        return Encoding(ids=ids, type_ids=type_ids if self.has_type_ids else None)

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the tokens of texts whole, however long they are."""
        # The fast variant does not tell words.
        encoded = self._untruncated.encode_batch(texts, add_special_tokens=False)
        return [
            Pieces(ids=np.array(one.ids, np.int32), words=np.array(one.word_ids, np.int32))
            for one in encoded
        ]

    def _encode_marked(self, example: Example) -> Encoding:
        if example.entities is None:
            message = "a text without entities stands among texts with entities"
            raise InputError(message)
        text, places = mark(example.text, example.entities)
        with _Unicode():
            tokens = self._untruncated.encode(text)
        marks = [_touching(tokens, place) for place in places]
        if self.unknown_id is not None and tokens.ids[marks[0][0]] == self.unknown_id:
            message = f"the vocabulary lacks {' or '.join(MARKS)}, which mark the two entities"
            raise ConfigError(message, "add them to the vocabulary, each as a token of its own")
        kept_T = self._kept(tokens, np.concatenate(marks))
        ends = [marks[0][0], marks[1][-1] + 1, marks[2][0], marks[3][-1] + 1]
        start1, end1, start2, end2 = map(int, np.searchsorted(kept_T, ends))
        return Encoding(
            ids=np.array(tokens.ids, np.int32)[kept_T],
            type_ids=np.array(tokens.type_ids, np.int8)[kept_T] if self.has_type_ids else None,
            entity_spans=((start1, end1), (start2, end2)),
        )

    def _kept(self, tokens: Tokens, marks_M: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the places of the tokens that stay: the special ones, and those near a mark."""
        special_T = np.array(tokens.special_tokens_mask, bool)
        room = self.max_length - int(special_T.sum())
        if room < len(marks_M):
            message = (
                f"max_length {self.max_length} has no room for the {len(marks_M)} marks of two "
                f"entities and {int(special_T.sum())} special tokens"
            )
            raise ConfigError(message, "raise model.max_length")
        words_W = np.flatnonzero(~special_T)
        apart_W = np.abs(words_W[:, None] - marks_M[None, :]).min(axis=1)
        nearest_W = words_W[np.argsort(apart_W, kind="stable")[:room]]
        return np.sort(np.concatenate([np.flatnonzero(special_T), nearest_W]))

    @cached_property
    def _words(self) -> Words | None:
        return Words(self._untruncated) if separable(self._tokenizer) else None

    @cached_property
    def _frame(self) -> Frame | None:
        """What stands around a text whose words are kept."""
        return Frame.of(self._untruncated) if self._words is not None else None

    @cached_property
    def _joint(self) -> Joint:
        return Joint.of(self._untruncated)

    @cached_property
    def _untruncated(self) -> Tokenizer:
        # The library's own truncation cuts an end off, and may be switched for all threads only.
        copy = Tokenizer.from_str(self._tokenizer.to_str())
        copy.no_truncation()
        copy.encode_special_tokens = True
        return copy


class _Unicode:
    """Says what the library cannot take."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TypeError | UnicodeEncodeError):
            message = "a text is not valid Unicode: it holds a lone surrogate"
            hint = "decode the bytes as UTF-8 before sending them"
            raise InputError(message, hint) from error


def mark(text: str, entities: Spans) -> tuple[str, list[int]]:
    """Set the marks around two entities, each a word of its own.

    Returns:
        The marked text and where the four marks stand in it: before and after e1, before and
        after e2.
    """
    marked, places, done = "", [0] * 4, 0
    for role in sorted((0, 1), key=entities.__getitem__):
        start, end = entities[role]
        marked += text[done:start]
        if marked and not marked[-1].isspace():
            marked += " "
        places[2 * role] = len(marked)
        marked += f"{MARKS[role]} {text[start:end]} "
        places[2 * role + 1] = len(marked)
        marked += MARKS[role]
        if text[end : end + 1].strip():
            marked += " "
        done = end
    return marked + text[done:], places


def _touching(tokens: Tokens, place: int) -> NDArray[np.intp]:
    """Return the places of the tokens that hold the character at `place`."""
    starts_T, ends_T = np.array(tokens.offsets).T
    inside_T = (starts_T <= place) & (place < ends_T) & ~np.array(tokens.special_tokens_mask, bool)
    if not inside_T.any():
        message = f"the tokenizer drops the marks {' '.join(MARKS)} that stand around entities"
        raise ConfigError(message, "take a tokenizer that keeps punctuation")
    return np.flatnonzero(inside_T)


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    unknown = getattr(tokenizer.model, "unk_token", None)
    return None if unknown is None else tokenizer.token_to_id(unknown)
