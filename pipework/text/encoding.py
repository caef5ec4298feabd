"""Encode texts to token ids, for training and serving alike.

Shapes: T tokens of one input, special tokens included.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as Tokens
from tokenizers import Tokenizer

from pipework.data.entities import Spans
from pipework.data.examples import Example
from pipework.errors import ConfigError, InputError, RunFolderError
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.tasks.kinds import Words
from pipework.tasks.outputs import NO_PLACE, Indices, Places, offsets_of
from pipework.tasks.windows import Windows
from pipework.text.places import moved_ends, places_of
from pipework.text.special_tokens import PairTemplate, truncated_lengths
from pipework.text.word_cache import TextTemplate, WordCache, separable

# The ids of an input without any token: some tokenizers add no special tokens (GPT-2).
NO_TOKENS = np.zeros(1, np.int32)
CHUNK = 1_000_000  # characters whose tokens have their places in memory
MARKS = ("$", "#")  # around e1 and e2, as in R-BERT (https://arxiv.org/abs/1905.08284)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Encoding:
    """Token ids of one input without padding; engines pad or pack them.

    Attributes:
        ids: int32 [T].
        type_ids: int8 [T], 0 for the first text and 1 for the second, or None for a model family
            without type ids.
        entity_spans: token spans [start, end) of the two entities, their marks included, or None
            for a task without entities.
        truncated: whether tokens were removed, because there were more than `max_length`.
        others: the other windows of a text of which this is the first, see `encode_windows`.
    """

    ids: NDArray[np.int32]
    type_ids: NDArray[np.int8] | None
    entity_spans: Spans | None = None
    truncated: bool = False
    others: "tuple[Encoding, ...]" = ()

    def __len__(self) -> int:
        """Return T."""
        return len(self.ids)


def token_digest(encodings: Iterable[Encoding]) -> str:
    """Return a digest of the token ids, type ids and spans of inputs in any order."""
    total = 0
    for encoding in encodings:
        digest = hashlib.blake2b(encoding.ids.tobytes(), digest_size=8)
        digest.update(b"" if encoding.type_ids is None else encoding.type_ids.tobytes())
        digest.update(repr(encoding.entity_spans).encode())
        total += int.from_bytes(digest.digest())
    return f"{total % 2**64:016x}"


def truncated_rows(encodings: Sequence[Encoding]) -> tuple[int, ...]:
    """Return the indices of the truncated inputs."""
    return tuple([row for row, encoding in enumerate(encodings) if encoding.truncated])


def all_windows(encodings: Sequence[Encoding]) -> tuple[Sequence[Encoding], Indices | None]:
    """Return all windows of texts, and the offsets of each text; None for one window each."""
    if not any(encoding.others for encoding in encodings):
        return encodings, None
    counts_N = np.array([1 + len(encoding.others) for encoding in encodings])
    windows = [window for first in encodings for window in (first, *first.others)]
    return windows, offsets_of(counts_N)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextTokens:
    """All tokens of a text, without special tokens.

    Attributes:
        ids: int32 [T].
        words: int32 [T], the index of the word that a token belongs to.
    """

    ids: NDArray[np.int32]
    words: NDArray[np.int32]


class TextEncoder:
    """The tokenizer of a run with its maximum length. Thread-safe.

    Attributes:
        keeps_end: whether truncation removes the first tokens of a text, and not the last.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, type_ids: bool) -> None:
        """Take ownership of a tokenizer.

        Its padding and truncation settings are replaced, but for the direction of truncation.
        """
        tokenizer.no_padding()
        self.keeps_end = truncates_left(tokenizer)
        # Truncate the longer text of a pair first, as BERT's and GLUE's reference code does.
        tokenizer.enable_truncation(
            max_length, strategy="longest_first", direction="left" if self.keeps_end else "right"
        )
        tokenizer.encode_special_tokens = True  # "[SEP]" inside a text is ordinary text
        self._tokenizer = tokenizer
        self.has_type_ids = type_ids
        self.max_length = max_length
        self.unknown_id: int | None = _unknown_id(tokenizer)

    @classmethod
    def open(cls, path: Path, *, max_length: int, type_ids: bool) -> "TextEncoder":
        """Load a `tokenizer.json`.

        Raises:
            RunFolderError: the file is missing or not a tokenizer.
        """
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            message = f"{path} is not a tokenizer: {error}"
            raise RunFolderError(message) from error
        return cls(tokenizer, max_length=max_length, type_ids=type_ids)

    def word_ids(self) -> NDArray[np.int32]:
        """Return the ids of all tokens that a text can have, without special tokens, sorted."""
        special = {
            number
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special and number != self.unknown_id
        }
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        return np.array(sorted({*ids} - special), np.int32)

    @cached_property
    def tokens_in_texts(self) -> frozenset[str]:
        """The added tokens that a text can contain as themselves; special tokens are text."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added if not token.special)

    def with_max_length(self, max_length: int) -> "TextEncoder":
        """Return an encoder with the same tokenizer and another maximum length."""
        copy = Tokenizer.from_str(self._tokenizer.to_str())
        return TextEncoder(copy, max_length=max_length, type_ids=self.has_type_ids)

    def encode(self, examples: Sequence[Example]) -> list[Encoding]:
        """Encode inputs, each truncated to `max_length` tokens; an empty text is allowed.

        In a text with entities, the first is enclosed in `$` and the second in `#`. Truncation
        removes the tokens that are farthest from these marks and keeps the marks.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
            ConfigError: `max_length` has no room for the marks, the tokenizer drops them, or it
                has no template for pairs.
        """
        if any(example.entities is not None for example in examples):
            return [self._encode_marked(example) for example in examples]
        paired = [example for example in examples if example.text_pair is not None]
        texts = iter(
            self._encode_texts([example.text for example in examples if example.text_pair is None])
        )
        if not paired:
            return [*texts]
        pairs = iter(self._encode_pairs(paired))
        return [next(texts if example.text_pair is None else pairs) for example in examples]

    def encode_windows(self, examples: Sequence[Example], windows: Windows) -> list[Encoding]:
        """Encode the whole of single texts, those longer than `max_length` as several windows.

        Raises:
            InputError: a text is not valid Unicode.
            ConfigError: the windows share more than half of their tokens, or the tokenizer has no
                template.
        """
        if (template := self._text_template) is None:
            message = "the tokenizer does not insert a text once between its special tokens"
            raise ConfigError(message, "leave out windows")
        room = template.room(self.max_length)
        if windows.stride > room // 2 or not room:
            message = f"expected windows with a stride of at most {room // 2}, half their tokens"
            raise ConfigError(message, f"found {windows.stride}: choose a smaller stride")
        encodings = list[Encoding]()
        for ids in self._token_ids([example.text for example in examples]):
            first, *others = (
                self._encoding(*template.around(ids[start : start + room]), truncated=False)
                for start in windows.starts(len(ids), room)
            )
            encodings.append(replace(first, others=tuple(others)) if others else first)
        return encodings

    def places(self, examples: Sequence[Example], words: Words = Words.TOKENS) -> list[Places]:
        """Return the characters of each token of single texts, without white space at the ends.

        The tokens are those of `encode`; special tokens and white space have NO_PLACE. The first
        token of a word has the characters of the word, and the others have NO_PLACE; so does a
        token that shares a character with an earlier one, as the bytes of a character.
        """
        texts = [example.text for example in examples]
        return [
            places_of(text, tokens, words) for text, tokens in self._all_tokens(texts, whole=False)
        ]

    def window_places(
        self,
        examples: Sequence[Example],
        words: Words,
        windows: Windows,
        in_spans: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[Places]:
        """Return the characters of each token of all windows of single texts, in order.

        A token of several windows has its characters where it is farther from the ends of the
        window, and NO_PLACE in the others. The windows are those of `encode_windows`.

        `in_spans` are the tokens in spans, of all windows of each text: then no span is divided
        between two windows, if there is such a place.
        """
        if (template := self._text_template) is None:
            return self.places(examples, words)
        room, (before, after) = template.room(self.max_length), map(len, template.type_ids)
        found = list[Places]()
        texts = self._all_tokens([row.text for row in examples], whole=True)
        for row, (text, tokens) in enumerate(texts):
            places_T2 = places_of(text, tokens, words)[: len(tokens)]
            starts = windows.starts(len(tokens), room)
            ends = windows.ends(starts, room, len(tokens))
            size = before + min(room, len(tokens)) + after
            if in_spans is not None and len(starts) > 1:
                inside_WT = in_spans[row].reshape(len(starts), size)[:, before : before + room]
                ends = moved_ends(ends, starts, places_T2[:, 0] != NO_PLACE, inside_WT)
            rows, first = list[Places](), 0
            for start, end in zip(starts, ends, strict=True):
                window = np.full((max(1, size), 2), NO_PLACE, np.int32)
                window[before + first - start : before + end - start] = places_T2[first:end]
                rows.append(window)
                first = end
            found.append(np.concatenate(rows))
        return found

    def _all_tokens(self, texts: Sequence[str], *, whole: bool) -> Iterator[tuple[str, Tokens]]:
        """Yield texts with their tokens, which the fast call of the library leaves out.

        The tokens of the `whole` text are without special tokens.
        """
        tokenizer = self._untruncated if whole else self._tokenizer
        most = max(1, CHUNK // (1 + max(map(len, texts), default=0)))
        for start in range(0, len(texts), most):
            chunk = texts[start : start + most]
            with _UnicodeCheck():
                batch = tokenizer.encode_batch(chunk, add_special_tokens=not whole)
            yield from zip(chunk, batch, strict=True)

    def _encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        if (cache := self._word_cache) is not None and (template := self._text_template):
            room = template.room(self.max_length)
            with _UnicodeCheck():
                # One more than fits, so that it is known whether a text is truncated.
                all_ids = cache.ids(texts) if self.keeps_end else cache.first_ids(texts, room + 1)
            return [
                self._encoding(*template.around(self._cut(ids, room)), len(ids) > room)
                for ids in all_ids
            ]
        with _UnicodeCheck():
            batch = self._tokenizer.encode_batch_fast(texts)
        return [
            self._encoding(
                np.array(tokens.ids, np.int32),
                np.array(tokens.type_ids, np.int8),
                # The library copies the removed tokens, so shorter texts are not asked.
                len(tokens) >= self.max_length and bool(tokens.overflowing),
            )
            for tokens in batch
        ]

    def _encode_pairs(self, examples: Sequence[Example]) -> list[Encoding]:
        texts = [text for pair in examples for text in (pair.text, pair.text_pair or "")]
        ids, template = self._token_ids(texts), self._pair_template
        room = template.room(self.max_length)
        encodings = list[Encoding]()
        for first, second in zip(ids[::2], ids[1::2], strict=True):
            kept = truncated_lengths(len(first), len(second), room)
            pair = template.join(self._cut(first, kept[0]), self._cut(second, kept[1]))
            encodings.append(self._encoding(*pair, len(first) + len(second) > room))
        return encodings

    def _cut(self, ids: NDArray[np.int32], count: int) -> NDArray[np.int32]:
        """Return `count` tokens of a text."""
        return ids[max(0, len(ids) - count) :] if self.keeps_end else ids[:count]

    def _token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return all token ids of each text, without special tokens."""
        if not texts:
            return []
        with _UnicodeCheck():
            if self._word_cache is not None:
                return self._word_cache.ids(texts)
            batch = self._untruncated.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(tokens.ids, np.int32) for tokens in batch]

    def _encoding(
        self, ids: NDArray[np.int32], type_ids: NDArray[np.int8], truncated: bool
    ) -> Encoding:
        if not ids.size:
            ids, type_ids = NO_TOKENS, NO_TOKENS.astype(np.int8)
        return Encoding(
            ids=ids, type_ids=type_ids if self.has_type_ids else None, truncated=truncated
        )

    def tokens_of(self, texts: Sequence[str]) -> list[TextTokens]:
        """Return all tokens of each text, without truncation."""
        # encode_batch_fast does not return word ids.
        batch = self._untruncated.encode_batch(texts, add_special_tokens=False)
        return [
            TextTokens(
                ids=np.array(tokens.ids, np.int32), words=np.array(tokens.word_ids, np.int32)
            )
            for tokens in batch
        ]

    def _encode_marked(self, example: Example) -> Encoding:
        if example.entities is None:
            message = "found a text without entities in a batch of texts with entities"
            raise InputError(message)
        text, positions = mark_entities(example.text, example.entities)
        with _UnicodeCheck():
            tokens = self._untruncated.encode(text)
        marks = [_tokens_at(tokens, position) for position in positions]
        if self.unknown_id is not None and tokens.ids[marks[0][0]] == self.unknown_id:
            message = f"the vocabulary lacks {' or '.join(MARKS)}, which mark the two entities"
            raise ConfigError(message, "add them to the vocabulary as separate tokens")
        kept_T = self._kept_tokens(tokens, np.concatenate(marks))
        ends = [marks[0][0], marks[1][-1] + 1, marks[2][0], marks[3][-1] + 1]
        start1, end1, start2, end2 = map(int, np.searchsorted(kept_T, ends))
        return Encoding(
            ids=np.array(tokens.ids, np.int32)[kept_T],
            type_ids=np.array(tokens.type_ids, np.int8)[kept_T] if self.has_type_ids else None,
            entity_spans=((start1, end1), (start2, end2)),
            truncated=len(kept_T) < len(tokens),
        )

    def _kept_tokens(self, tokens: Tokens, marks_M: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the indices of the tokens to keep: special tokens and those nearest to a mark."""
        special_T = np.array(tokens.special_tokens_mask, bool)
        room = self.max_length - int(special_T.sum())
        if room < len(marks_M):
            message = (
                f"max_length {self.max_length} has no room for the {len(marks_M)} marks of two "
                f"entities and {int(special_T.sum())} special tokens"
            )
            raise ConfigError(message, "raise model.max_length")
        words_W = np.flatnonzero(~special_T)
        distance_W = np.abs(words_W[:, None] - marks_M[None, :]).min(axis=1)
        nearest_W = words_W[np.argsort(distance_W, kind="stable")[:room]]
        return np.sort(np.concatenate([np.flatnonzero(special_T), nearest_W]))

    @cached_property
    def _word_cache(self) -> WordCache | None:
        return WordCache(self._untruncated) if separable(self._tokenizer) else None

    @cached_property
    def _text_template(self) -> TextTemplate | None:
        """The special tokens around a single text; None if they do not contain it once."""
        return TextTemplate.of(self._untruncated)

    @cached_property
    def _pair_template(self) -> PairTemplate:
        return PairTemplate.of(self._untruncated)

    @cached_property
    def _untruncated(self) -> Tokenizer:
        # The library can only truncate at one end, and the setting is shared by all threads.
        copy = Tokenizer.from_str(self._tokenizer.to_str())
        copy.no_truncation()
        copy.encode_special_tokens = True
        return copy


class _UnicodeCheck:
    """Raises InputError for the library's errors about text that is not valid Unicode."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TypeError | UnicodeEncodeError):
            message = "a text is not valid Unicode: it contains a lone surrogate"
            hint = "decode the bytes as UTF-8 before sending them"
            raise InputError(message, hint) from error


def mark_entities(text: str, entities: Spans) -> tuple[str, list[int]]:
    """Insert the marks around two entities, each as a separate word.

    Returns:
        The marked text and the positions of the four marks: before and after e1, before and
        after e2.
    """
    marked, positions, done = "", [0] * 4, 0
    for role in sorted((0, 1), key=entities.__getitem__):
        start, end = entities[role]
        marked += text[done:start]
        if marked and not marked[-1].isspace():
            marked += " "
        positions[2 * role] = len(marked)
        marked += f"{MARKS[role]} {text[start:end]} "
        positions[2 * role + 1] = len(marked)
        marked += MARKS[role]
        if text[end : end + 1].strip():
            marked += " "
        done = end
    return marked + text[done:], positions


def _tokens_at(tokens: Tokens, position: int) -> NDArray[np.intp]:
    """Return the indices of the tokens that contain the character at `position`."""
    starts_T, ends_T = np.array(tokens.offsets).T
    special_T = np.array(tokens.special_tokens_mask, bool)
    inside_T = (starts_T <= position) & (position < ends_T) & ~special_T
    if not inside_T.any():
        message = f"the tokenizer drops the marks {' '.join(MARKS)} around entities"
        raise ConfigError(message, "use a tokenizer that keeps punctuation")
    return np.flatnonzero(inside_T)


def truncates_left(tokenizer: Tokenizer) -> bool:
    """Return whether truncation removes the first tokens of a text, and not the last."""
    settings = tokenizer.truncation or {}
    return str(settings.get("direction")).lower() == "left"


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    unknown = getattr(tokenizer.model, "unk_token", None)
    return None if unknown is None else tokenizer.token_to_id(unknown)


def open_encoder(run: Path, manifest: Manifest) -> TextEncoder:
    """Open the tokenizer of a run, after checking its digest.

    Raises:
        RunFolderError: the tokenizer is missing or has changed.
        ConfigError: it cannot make the windows of the manifest.
    """
    form = manifest.input
    verify_files(run, (form.tokenizer,))
    path = run / form.tokenizer.path
    encoder = TextEncoder.open(path, max_length=form.max_length, type_ids=form.type_ids)
    if manifest.windows is not None:
        encoder.encode_windows([], manifest.windows)
    return encoder
