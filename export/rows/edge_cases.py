"""Inputs of a parity check that often break exports: unusual lengths, texts and token ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.text.encoding import Encoding, TextEncoder
from pipework.train.model.ngram_embeddings import NgramTable

SPREAD_ROWS = 48
EVERY_LENGTH = 512  # up to this length there is an input of each; then SPREAD_LENGTHS more
SPREAD_LENGTHS = 64
FRUITLESS_TRIES = 10
# Texts that have broken tokenizers, length limits and masks. Characters are written as escapes
# where an editor shows nothing or a different character.
EDGE_TEXTS = {
    "one letter": "a",
    "one Chinese character": "中",
    "one space": " ",
    "Arabic, right to left": "مرحبا بالعالم",
    "Hebrew with points": "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "Devanagari": "नमस्ते दुनिया",
    "Thai": "สวัสดีชาวโลก",
    "Korean": "안녕하세요 세계",
    "Cyrillic and Greek": "\u041f\u0440\u0438\u0432\u0435\u0442, \u03ba\u03cc\u03c3\u03bc\u03b5",
    "Georgian and Amharic": "გამარჯობა ሰላም",
    "emoji in families": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "combining marks": "e\u0301" + "a" + "\u0300\u0316\u0334" * 20,
    "letters of plane 1": "\U0001d518\U0001d52b\U0001d526 \U00013000",
    "control characters": "a\x00b\x07c\x1b[0m \x7f\x85\ufeff\u200b\u2028end",
    "direction overrides": "abc \u202egnirts\u202c \u2066x\u2069",
    "unassigned and private": "\ue000\ufffd\ufffe\U000e0001\U0010ffff",
    "nothing but punctuation": "?!... -- ((([[[{{{ %$#@",
    "numbers": "0 -1 3.14 1e-9 ١٢٣ Ⅷ ½",
    "a very long word": "w" * 1000,
    "written marks": "[CLS] [SEP] [MASK] [PAD] <s> </s>",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One input of a parity check: a description and its encoding."""

    name: str
    encoding: Encoding


def encoded_rows(
    encoder: TextEncoder, names: Iterable[str], examples: Sequence[Example]
) -> list[Row]:
    """Return an input for each example, with its name."""
    encodings = encoder.encode(examples)
    return [
        Row(name=name, encoding=encoding) for name, encoding in zip(names, encodings, strict=True)
    ]


def edge_case_rows(
    encoder: TextEncoder, examples: Sequence[Example], numbers: Sequence[int] | None = None
) -> list[Row]:
    """Return the inputs that are checked at several batch sizes.

    They are real rows, sampled evenly from the file; real texts joined and cut to lengths from one
    token to the limit; a text far over the limit; an empty text, and pairs with one empty side; and
    texts in other scripts and without letters.

    Args:
        encoder: the tokenizer of the run.
        examples: real inputs.
        numbers: row numbers of the examples; None counts from 1.
    """
    numbers = numbers or range(1, len(examples) + 1)
    sample_size = min(len(examples), SPREAD_ROWS)
    spread = np.linspace(0, len(examples) - 1, sample_size).astype(np.int64).tolist()
    names = (f"dev row {numbers[index]}" for index in spread)
    rows = encoded_rows(encoder, names, [examples[index] for index in spread])
    synthetic = edge_examples(examples[0])
    synthetic["truncated text"] = _joined(examples, 4 * encoder.max_length)
    unusual = encoded_rows(encoder, synthetic, [*synthetic.values()])
    rows += unusual
    shortest = min(len(row.encoding) for row in unusual)
    for length in _lengths(shortest, encoder.max_length):
        (cut,) = encoder.with_max_length(length).encode([_joined(examples, 2 * length)])
        rows.append(Row(name=f"text cut to {length}", encoding=cut))
    # Pair the longest row with the shortest and so on, which maximises padding in a batch.
    rows.sort(key=lambda row: len(row.encoding))
    ends = zip(rows, reversed(rows), strict=True)
    return [row for pair in ends for row in pair][: len(rows)]


@dataclass(frozen=True, kw_only=True, eq=False)
class WordRows:
    """Composes inputs of `max_length` tokens from token ids.

    Attributes:
        empty: the encoding of an empty text.
        places: positions in `empty` at which the tokens of the texts are inserted.
        room: number of tokens to insert.
        words_V: ids of all tokens of the vocabulary that are not special.
    """

    empty: Encoding
    places: Sequence[int]
    room: int
    words_V: NDArray[np.int32]

    @classmethod
    def of(cls, encoder: TextEncoder, template: Example) -> "WordRows":
        """Return the composer for a tokenizer and an input with the fields of the model."""
        empty, *others = encoder.encode([_with_text(template, ""), *_with_one_letter(template)])
        return cls(
            empty=empty,
            places=sorted({_first_difference(empty, other) for other in others}),
            room=encoder.max_length - len(empty),
            words_V=encoder.word_ids(),
        )

    def vocabulary(self) -> list[Row]:
        """Return inputs that together have every token, position and type id.

        Real texts use a part of a vocabulary: without these inputs, most rows of an embedding table
        would never be computed.
        """
        room, ids = self.room, self.words_V
        if room <= 0 or not len(ids):
            return []
        parts = [ids[start : start + room] for start in range(0, len(ids), room)]
        parts[-1] = np.resize(ids, room) if len(parts) == 1 else ids[-room:]
        return [
            Row(
                name=f"token ids {part.min()} to {part.max()}",
                encoding=_filled(self.empty, self.places, part),
            )
            for part in parts
        ]

    def lengths(self, rows: Sequence[Row]) -> list[Row]:
        """Return an input of each length that has a token of text, with tokens of real rows."""
        shortest, limit = len(self.empty) + 1, len(self.empty) + self.room
        wanted = set(range(shortest, min(limit, EVERY_LENGTH) + 1))
        if limit > EVERY_LENGTH:
            wanted |= set(np.linspace(EVERY_LENGTH, limit, SPREAD_LENGTHS).astype(int).tolist())
        ids = self._real(rows)
        return [
            Row(
                name=f"{length} tokens of dev",
                # Each starts at another token.
                encoding=self._of(np.roll(ids, -31 * length), length - len(self.empty)),
            )
            for length in sorted(wanted)
            if len(ids)
        ]

    def single(self, rows: Sequence[Row], most: int) -> list[Row]:
        """Return up to `most` inputs with one token of real rows each."""
        if self.room <= 0:
            return []
        ids = np.unique(self._real(rows))
        places = np.linspace(0, len(ids), min(most, len(ids)), endpoint=False).astype(np.int64)
        return [
            Row(name=f"the token {token}", encoding=self._of(np.array([token], np.int32), 1))
            for token in ids[places].tolist()
        ]

    def _real(self, rows: Sequence[Row]) -> NDArray[np.int32]:
        """Return the tokens of texts, or of the vocabulary if no row has any."""
        ids = np.concatenate([row.encoding.ids for row in rows])
        real = ids[np.isin(ids, self.words_V)]
        return np.asarray(real if len(real) else self.words_V, np.int32)

    def _of(self, ids: NDArray[np.int32], count: int) -> Encoding:
        return _filled(self.empty, self.places, np.resize(ids, count))

    def ngrams(self, table: NgramTable, rows: Sequence[Row]) -> tuple[list[Row], int]:
        """Return inputs that read every bucket of an n-gram table that no row of `rows` reads.

        Returns:
            The inputs, and the number of buckets that no input was found for.
        """
        missing = np.ones(table.buckets, np.bool_)
        for row in rows:
            missing[table.read_by(row.encoding.ids)] = False
        found, tried, searches = list[Row](), 0, 0
        # A word that is tried reads a given bucket with a chance of 1 in the number of buckets.
        while rows and missing.any() and tried < FRUITLESS_TRIES * table.buckets:
            texts_BT = table.search(missing, self.words_V, self.room, searches)
            searches, tried = searches + 1, tried + texts_BT.size * len(self.words_V)
            for text_T in texts_BT:
                encoding = _filled(self.empty, self.places, text_T)
                read = table.read_by(encoding.ids)
                if missing[read].any():
                    missing[read], tried = False, 0
                    found.append(Row(name=f"n-grams {len(found) + 1}", encoding=encoding))
        return found, int(missing.sum())


def _with_one_letter(template: Example) -> tuple[Example, Example]:
    """Return two inputs with one letter: in the first text, and in the last."""
    letter = replace(_with_text(template, ""), text="a")
    if template.text_pair is None:
        return letter, letter
    return letter, replace(letter, text="", text_pair="a")


def _first_difference(encoding: Encoding, other: Encoding) -> int:
    size = min(len(encoding), len(other))
    differs = np.flatnonzero(encoding.ids[:size] != other.ids[:size])
    return int(differs[0]) if len(differs) else size


def _filled(empty: Encoding, places: Sequence[int], ids: NDArray[np.int32]) -> Encoding:
    """Insert token ids at the places of the texts, an equal part at each."""
    parts = np.array_split(ids, len(places))
    pieces, types, start = [], [], 0
    for kind, (place, part) in enumerate(zip(places, parts, strict=True)):
        pieces += [empty.ids[start:place], part]
        if empty.type_ids is not None:
            types += [empty.type_ids[start:place], np.full(len(part), kind, np.int8)]
        start = place
    pieces.append(empty.ids[start:])
    if empty.type_ids is not None:
        types.append(empty.type_ids[start:])
    return Encoding(
        ids=np.concatenate(pieces),
        type_ids=np.concatenate(types) if empty.type_ids is not None else None,
        entity_spans=empty.entity_spans,
    )


def _lengths(shortest: int, limit: int) -> list[int]:
    """Return lengths from one token of text to the limit, each twice the previous length."""
    lengths = {limit, shortest + 1}
    length = 8
    while length < limit:
        lengths.add(length)
        length *= 2
    return sorted(length for length in lengths if shortest < length <= limit)


def edge_examples(template: Example) -> dict[str, Example]:
    """Return inputs that often break exports, by name, with the fields of `template`."""
    examples = {"empty text": _with_text(template, "")}
    examples |= {name: _with_text(template, text) for name, text in EDGE_TEXTS.items()}
    if template.text_pair is not None:
        examples["first text empty"] = replace(template, text="")
        examples["second text empty"] = replace(template, text_pair="")
    return examples


def _with_text(template: Example, text: str) -> Example:
    """Return an input with this text in each field; its first and last characters are entities."""
    first, last = (0, min(1, len(text))), (max(0, len(text) - 1), len(text))
    return Example(
        text=text,
        text_pair=None if template.text_pair is None else text,
        entities=None if template.entities is None else (first, last),
    )


def _joined(examples: Sequence[Example], tokens: int) -> Example:
    """Join as many real texts as `tokens`, so that the result has at least that many tokens.

    Pairs are joined on both sides. The entities are the first of the first text and the second of
    the last text.
    """
    several = [examples[index % len(examples)] for index in range(tokens)]
    text = " ".join(example.text for example in several)
    first, last = several[0], several[-1]
    entities = None
    if first.entities is not None and last.entities is not None:
        before = len(text) - len(last.text)
        start, end = last.entities[1]
        entities = (first.entities[0], (before + start, before + end))
    pair = None
    if first.text_pair is not None:
        pair = " ".join(example.text_pair or "" for example in several)
    return Example(text=text, text_pair=pair, entities=entities)
