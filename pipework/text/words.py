"""The words of a text, for tags of tokens.

Shapes: L characters of a text, T tokens of an input.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.tasks.kinds import Words
from pipework.tasks.labels import spans_of
from pipework.tasks.outputs import NO_PLACE, Places

Flags = NDArray[np.bool_]
BLANK, WORD, MARK, UNSPACED, OPENS, CLOSES = (1 << bit for bit in range(6))
BOTH = "\"'`<>|=\ufeff\u200e\u200f"  # at the start and at the end of words
OPENING = ("Ps", "Pi", "Pf")  # some languages use opening quotes as closing ones, and vice versa
CLOSING = ("Pe", "Pi", "Pf", "Po")
IN_NAMES = "@#&%*/\\"  # of the category Po, but parts of handles, tags, amounts and paths
POSSESSIVE = re.compile(r"(?<=\w)['’]s(?!\w)")  # noqa: RUF001  (the typographic apostrophe)
MOST_LOST = 0.01  # share of spans that may not begin and end with words


def inside_words(text: str, words: Words) -> Flags:
    """Return for each position in a text whether a word continues there, [L + 1].

    With `letters`, a word is a run of letters, digits and marks. With `whitespace`, it is a run of
    other characters than white space, without opening punctuation at its start, closing
    punctuation at its end, and the English 's; each of these is a word. In both, each letter of
    a script without blanks between words, such as Chinese or Thai, is a word.
    """
    codes, index_L = np.unique(np.fromiter(map(ord, text), np.int32), return_inverse=True)
    kinds_L = np.array([_kinds(chr(code)) for code in codes.tolist()], np.uint8)[index_L]
    before, after = np.pad(kinds_L, (1, 0), constant_values=BLANK), np.append(kinds_L, BLANK)
    if words is Words.LETTERS:
        return _any(before, WORD) & _any(after, WORD | MARK)
    if words is Words.TOKENS:
        return np.zeros(len(text) + 1, np.bool_)
    inside = ~_any(before | after, BLANK | UNSPACED)
    outer_L = _first_of_runs(_any(kinds_L, OPENS), inside[:-1])
    outer_L |= _first_of_runs(_any(kinds_L, CLOSES)[::-1], inside[:0:-1])[::-1]
    inside[1:-1] &= ~(outer_L[:-1] | outer_L[1:])
    inside[[match.start() for match in POSSESSIVE.finditer(text)]] = False
    return inside


def _any(kinds: NDArray[np.uint8], bits: int) -> Flags:
    return np.asarray(kinds & np.uint8(bits), np.bool_)


@lru_cache(4096)
def _kinds(character: str) -> int:
    category = unicodedata.category(character)
    kinds = MARK if category[0] == "M" else 0
    if character < "\u0e00":  # the scripts up to Thai have blanks
        kinds |= WORD if character.isalnum() or kinds else 0
    elif character.isalnum():
        unspaced = "\u0e00" <= character < "\u10a0" or "\u1780" <= character < "\u1800"
        wide = unicodedata.east_asian_width(character) in "WF"
        kinds |= UNSPACED if unspaced or wide else WORD
    both = character in BOTH
    opens = category in OPENING or both or character in "¿¡"
    closes = (category in CLOSING and character not in IN_NAMES) or both
    return kinds | BLANK * character.isspace() | OPENS * opens | CLOSES * closes


def _first_of_runs(flags_L: Flags, continues_L: Flags) -> Flags:
    """Return which characters have a flag, as all characters before them in their run."""
    places_L = np.arange(len(flags_L))
    starts_L = np.maximum.accumulate(np.where(continues_L, 0, places_L))
    others_L = np.cumsum(~flags_L)
    return others_L == others_L[starts_L] - ~flags_L[starts_L]


def first_of_words(places_T2: Places, text: str, words: Words) -> Places:
    """Return the places of tokens with those of words at their first tokens."""
    inside = inside_words(text, words)
    starts_T, ends_T = places_T2.T
    done_T = np.maximum.accumulate(np.append(NO_PLACE, ends_T[:-1]))
    continues_T = (starts_T != NO_PLACE) & (inside[starts_T] | (starts_T < done_T))
    words_T2 = np.where(continues_T[:, None], NO_PLACE, places_T2).astype(np.int32)
    first_T = np.maximum.accumulate(np.where(continues_T, 0, np.arange(len(places_T2))))
    np.maximum.at(words_T2[:, 1], first_T[continues_T], ends_T[continues_T])
    return words_T2


def words_of_spans(rows: Iterable[Example]) -> tuple[Words, float]:
    """Return the longest words with which labelled spans begin and end, and the share that do not.

    At most 1 % of the spans may begin or end inside of such a word.
    """
    total, lost = 0, dict.fromkeys((Words.WHITESPACE, Words.LETTERS), 0)
    for row in rows:
        spans = spans_of(row.label)
        total += len(spans)
        ends = np.array([span[:2] for span in spans], np.intp).reshape(-1, 2)
        for words in lost if spans else ():
            lost[words] += int(inside_words(row.text, words)[ends].any(axis=1).sum())
    for words, count in lost.items():
        if count <= MOST_LOST * total:
            return words, count / max(1, total)
    return Words.TOKENS, 0.0
