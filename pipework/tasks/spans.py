"""Spans of a text: their forms in data files, the tags of their tokens, and their decoding.

A tag is a prefix and a type, such as B-PER, or O outside of spans. The prefixes are those of BIO
(Ramshaw and Marcus 1995, https://aclanthology.org/W95-0107), BIOES and BMES: B begins a span of
several tokens, I and M continue it, E and L end it, S and U are a span with a single token. In a
scheme without E, B may be such a span. A tag without a prefix continues a span of its type, or
begins one.

Shapes: R tokens of all inputs, N inputs, B inputs that are decoded together, T tokens of the
longest of these, C tags, S spans.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipework.errors import InputError

OUTSIDE = "O"
BEGINS, CONTINUES, ENDS, ALONE = frozenset("B"), frozenset("IM"), frozenset("EL"), frozenset("SU")
PREFIXES = BEGINS | CONTINUES | ENDS | ALONE
STARTS = ("start", "start_position", "start_offset")
STOPS = ("end", "end_position", "end_offset")
TYPES = ("label", "entity_type", "labels", "tag", "type")
FORMS = 'expected spans as [{"start": 0, "end": 5, "label": "NAME"}]'
CHUNK = 65_536  # padded tokens that are decoded together
Tags = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Span(NamedTuple):
    """A part of a text: code points [start, end), and the name of its type."""

    start: int
    end: int
    label: str

    def strip(self, text: str) -> "Span":
        """Return the span without white space at its ends.

        Raises:
            InputError: it is not within the text, or has only white space.
        """
        part = text[self.start : self.end]
        if self.end > len(text) or not part.strip():
            found = f"[{self.start}, {self.end}) in {len(text)} characters"
            message = f"expected a span within the text, found {found}"
            raise InputError(message, "count code points from 0; the end is exclusive")
        start = self.start + len(part) - len(part.lstrip())
        return Span(start, start + len(part.strip()), self.label)


def parse_spans(value: object) -> tuple[Span, ...]:
    """Return the spans of a row, sorted by position.

    Objects have the keys of this project, of presidio, Label Studio, doccano, Prodigy or spaCy;
    lists are [start, end, label]. A text is JSON.

    Raises:
        InputError: the value is in none of these forms.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            message = f"{FORMS}, found the text {value!r:.40}"
            raise InputError(message) from error
    if isinstance(value, Mapping) and isinstance(value.get("entities"), list):
        value = value["entities"]  # spaCy
    if not isinstance(value, list):
        message = f"{FORMS}, found {'null' if value is None else type(value).__name__}"
        raise InputError(message, "write a row without spans as an empty list, []")
    return tuple(sorted({_span(item) for item in value if not _is_relation(item)}))


def _is_relation(item: object) -> bool:
    """Return whether an item of Label Studio joins two spans."""
    return isinstance(item, Mapping) and item.get("type") == "relation"


def _span(item: object) -> Span:
    fields: object = item.get("value", item) if isinstance(item, Mapping) else item
    if isinstance(fields, Mapping):
        fields = [_first(fields, names) for names in (STARTS, STOPS, TYPES)]
    match fields:
        case [int(start), int(end), str(label) | [str(label)]] if (
            0 <= start < end and label.strip()
        ):
            return Span(start, end, label.strip())
    message = f"{FORMS}, found {str(item)[:80]}"
    raise InputError(message, "the start is before the end, and a label is a name")


def _first(fields: Mapping[str, object], names: Sequence[str]) -> object:
    return next((fields[name] for name in names if name in fields), None)


def spans_of_tokens(
    tags: Sequence[str], places: Sequence[tuple[int, int]]
) -> list[dict[str, object]]:
    """Return the spans of tagged tokens as in a data file; `places` are their characters."""
    known = sorted({*tags})
    tags_R = np.array([known.index(tag) for tag in tags], np.int64)
    found = TagScheme.of(known).spans(tags_R, np.zeros(len(tags), np.int64))
    return [
        {"start": places[first][0], "end": places[last][1], "label": label}
        for first, last, label in zip(
            found.first.tolist(), found.last.tolist(), found.labels, strict=True
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpans:
    """S spans of tokens.

    Attributes:
        first, last: the first and the last token of each span, int64 [S].
        types: the index of the type of each span, int64 [S].
        names: the names of the types.
    """

    first: Tags
    last: Tags
    types: Tags
    names: tuple[str, ...]

    def keys(self, rows: int) -> Tags:
        """Return a number of each span that only equal spans of `rows` tokens have."""
        return (self.first * (rows + 1) + self.last) * len(self.names) + self.types

    def chosen(self, chosen_S: Flags) -> "TokenSpans":
        """Return some of the spans."""
        first, last, types = (part[chosen_S] for part in (self.first, self.last, self.types))
        return TokenSpans(first, last, types, self.names)

    @property
    def labels(self) -> list[str]:
        """The name of the type of each span."""
        return [self.names[index] for index in self.types.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class TagScheme:
    """The tags of a model, in the order of its logits.

    Attributes:
        types: the names of the types of spans.
        type_C: the index of the type of each tag; -1 outside.
        may_begin_C, may_end_C: whether a tag may be the first or the last of a text.
        may_follow_CC: whether the second tag may follow the first.
        extends_CC: whether the second tag continues a span after the first.
        tags_by_place: the first, inner and last tag of a longer span by type, and the tag of a span
            with a single token.
    """

    types: tuple[str, ...]
    type_C: Tags
    may_begin_C: Flags
    may_end_C: Flags
    may_follow_CC: Flags
    extends_CC: Flags
    tags_by_place: Mapping[str, tuple[int, int, int, int]]

    @classmethod
    def of(cls, tags: Sequence[str], *, inner_begins: bool = False) -> "TagScheme":
        """Return the scheme of tags by their names.

        With `inner_begins`, I may begin a span in a scheme without E, as in IOB1.
        """
        parsed = [_prefix_and_type(tag) for tag in tags]
        types = tuple(dict.fromkeys(name for _, name in parsed if name))
        type_C = np.array([types.index(name) if name else -1 for _, name in parsed], np.int64)
        prefixes = [prefix for prefix, _ in parsed]
        closed = any(prefix in ENDS for prefix in prefixes)  # every long span has an end
        begins_C, continues_C, ends_C, alone_C = (
            np.array([prefix in known for prefix in prefixes], np.bool_)
            for known in (BEGINS, CONTINUES, ENDS, ALONE)
        )
        inner_C = continues_C | ends_C
        has_begin = {name for prefix, name in parsed if prefix in BEGINS}
        loose_C = continues_C & inner_begins & (not closed)
        may_begin_C = (
            ~inner_C | loose_C | np.array([name not in has_begin for _, name in parsed], np.bool_)
        )
        open_C = (begins_C | continues_C) & closed
        same_CC = (type_C[:, None] == type_C) & (type_C >= 0)
        extends_CC = same_CC & ~(ends_C | alone_C)[:, None] & ~(begins_C | alone_C)
        return cls(
            types=types,
            type_C=type_C,
            may_begin_C=may_begin_C,
            may_end_C=~open_C,
            may_follow_CC=extends_CC | (~open_C[:, None] & may_begin_C),
            extends_CC=extends_CC,
            tags_by_place={name: _tags_by_place(parsed, name) for name in types},
        )

    def tags_of(self, name: str, length: int) -> list[int]:
        """Return the tags of a span of a type with a number of tokens."""
        first, inner, last, alone = self.tags_by_place[name]
        return [alone] if length == 1 else [first, *[inner] * (length - 2), last]

    def best(self, scores_RC: NDArray[np.floating], inputs_R: Tags) -> Tags:
        """Return the tags of each input with the highest sum of scores that may follow each other.

        This is the Viterbi algorithm without scores of transitions; `inputs_R` are the inputs of
        the tokens, in order.
        """
        tags_R: Tags = scores_RC.argmax(axis=1)
        starts_N = np.flatnonzero(np.diff(inputs_R, prepend=-1))
        lengths_N = np.diff(starts_N, append=len(inputs_R))
        wrong_N = np.flatnonzero(np.add.reduceat(~self._fits(tags_R, inputs_R), starts_N))
        wrong_N = wrong_N[np.argsort(lengths_N[wrong_N], kind="stable")]
        for chosen_B in _chunks(wrong_N, lengths_N):
            steps_T = np.arange(lengths_N[chosen_B].max())
            inside_BT = steps_T < lengths_N[chosen_B][:, None]
            rows_BT = np.where(inside_BT, starts_N[chosen_B][:, None] + steps_T, 0)
            found_BT = self._viterbi(scores_RC[rows_BT].astype(np.float64), lengths_N[chosen_B])
            tags_R[rows_BT[inside_BT]] = found_BT[inside_BT]
        return tags_R

    def _fits(self, tags_R: Tags, inputs_R: Tags) -> Flags:
        """Return whether each tag may follow the tag before it, and be the last of its input."""
        if not len(tags_R):
            return np.empty(0, np.bool_)
        joined_R = inputs_R[1:] == inputs_R[:-1]
        follows_R = self.may_follow_CC[tags_R[:-1], tags_R[1:]]
        begins_R = np.concatenate(([True], ~joined_R))
        fits_R = np.where(begins_R, self.may_begin_C[tags_R], np.concatenate(([True], follows_R)))
        ends_R = np.concatenate((~joined_R, [True]))
        return np.asarray(fits_R & (~ends_R | self.may_end_C[tags_R]))

    def _viterbi(self, scores_BTC: NDArray[np.float64], lengths_B: Tags) -> Tags:
        barred_CC = np.where(self.may_follow_CC, 0, -np.inf)
        best_BC = np.where(self.may_begin_C, scores_BTC[:, 0], -np.inf)
        before_BTC = np.zeros(scores_BTC.shape, np.int16)
        for step in range(1, scores_BTC.shape[1]):
            paths_BCC = best_BC[:, :, None] + barred_CC
            before_BTC[:, step] = paths_BCC.argmax(axis=1)
            reached_BC = paths_BCC.max(axis=1) + scores_BTC[:, step]
            best_BC = np.where((step < lengths_B)[:, None], reached_BC, best_BC)
        last_B = np.where(self.may_end_C, best_BC, -np.inf).argmax(axis=1)
        tags_BT = np.empty(scores_BTC.shape[:2], np.int64)
        rows_B, tag_B = np.arange(len(last_B)), last_B
        for step in range(scores_BTC.shape[1] - 1, -1, -1):
            tags_BT[:, step] = tag_B
            tag_B = np.where(step < lengths_B, before_BTC[rows_B, step, tag_B], last_B)
        return tags_BT

    def spans(self, tags_R: Tags, inputs_R: Tags) -> TokenSpans:
        """Return the spans of tags, which may be any sequence; negative tags are outside."""
        type_R = np.where(tags_R >= 0, self.type_C[tags_R], -1)
        if not len(type_R):
            nothing = np.empty(0, np.int64)
            return TokenSpans(nothing, nothing, nothing, self.types)
        same_R = (type_R[1:] == type_R[:-1]) & (inputs_R[1:] == inputs_R[:-1])
        joins_R = np.concatenate(([False], same_R & self.extends_CC[tags_R[:-1], tags_R[1:]]))
        first = np.flatnonzero((type_R >= 0) & ~joins_R)
        ends_R = np.concatenate((~joins_R[1:], [True])) & (type_R >= 0)
        return TokenSpans(first, np.flatnonzero(ends_R), type_R[first], self.types)


def _chunks(inputs: Tags, lengths_N: Tags) -> Iterator[Tags]:
    """Yield parts of inputs, shortest first, with at most CHUNK padded tokens or one input."""
    start = 0
    for stop in range(1, len(inputs) + 1):
        full = stop == len(inputs) or (stop + 1 - start) * lengths_N[inputs[stop]] > CHUNK
        if full:
            yield inputs[start:stop]
            start = stop


def _prefix_and_type(tag: str) -> tuple[str, str]:
    """Return the prefix of a tag and the type of its span, "" outside."""
    if tag == OUTSIDE:
        return "", ""
    prefix, dash, name = tag.partition("-")
    if not dash:
        prefix, dash, name = tag.partition("_")
    return (prefix, name) if dash and name and prefix in PREFIXES else ("", tag)


def _tags_by_place(tags: Sequence[tuple[str, str]], name: str) -> tuple[int, int, int, int]:
    own = {prefix: index for index, (prefix, known) in enumerate(tags) if known == name}

    def tag(*groups: frozenset[str]) -> int:
        return next(own[prefix] for group in groups for prefix in own if prefix in group)

    plain = frozenset({""})
    inner = tag(CONTINUES, plain, BEGINS, ENDS, ALONE)
    first = own.get("B", inner)
    last = tag(ENDS, CONTINUES, plain, BEGINS, ALONE)
    return first, inner, last, tag(ALONE, BEGINS, plain, CONTINUES, ENDS)


def bio_tags(types: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of BIO for the types of spans."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI"))
