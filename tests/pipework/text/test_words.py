"""The words of texts, and the choice of the words that fit labelled spans."""

import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.tasks.kinds import Words
from pipework.tasks.spans import Span
from pipework.text.words import inside_words, words_of_spans


def words_in(text, words):
    found = []
    for character, inside in zip(text, inside_words(text, words), strict=False):
        found[-1:] = [found[-1] + character] if inside else [*found[-1:], character]
    return [word for word in found if word.strip()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ana lives in (Paris).", "Ana|lives|in|(|Paris|)|."),
        ("\"It's Paris's!\"", "\"|It|'s|Paris|'s|!|\""),
        ("@ana #tag 50% 3.5 O'Neil a-b U.S.", "@ana|#tag|50%|3.5|O'Neil|a-b|U.S|."),
        ("¿Qué? «Zürich»,\u00a0“Łódź”", "¿|Qué|?|«|Zürich|»|,|“|Łódź|”"),
        ("<b>Ana</b>\r\n>Bob", "<|b>Ana</b|>|>|Bob"),
        ("我在Google工作。", "我|在|Google|工|作|。"),
        ("e\u0301te\u0301 हिन्दी। שָׁלוֹם", "e\u0301te\u0301|हिन्दी|।|שָׁלוֹם"),
        ("👩\u200d👧 ❤\ufe0f a\u200bb", "👩\u200d👧|❤\ufe0f|a\u200bb"),
        ("...", ".|.|."),
        ("\ufeffAna \u200fBob\u200e", "\ufeff|Ana|\u200f|Bob|\u200e"),
        ("", ""),
    ],
)
def test_words_end_at_white_space_and_at_punctuation_around_them(text, expected):
    assert "|".join(words_in(text, Words.WHITESPACE)) == expected


def test_runs_of_letters_are_words():
    found = words_in("@ana's 3.5 e\u0301te\u0301工作", Words.LETTERS)
    assert found == ["@", "ana", "'", "s", "3", ".", "5", "e\u0301te\u0301", "工", "作"]
    assert not inside_words("Ana", Words.TOKENS).any()


def test_a_word_never_continues_at_the_ends_or_at_white_space():
    text = " ".join(map(chr, [*range(1, 0x250), *range(0x0E00, 0x0E60), *range(0x2000, 0x2070)]))
    for words in Words:
        inside = inside_words(text, words)
        blank = np.array([character.isspace() for character in text])
        assert len(inside) == len(text) + 1
        assert not inside[0]
        assert not inside[-1]
        assert not (inside[:-1] & blank).any()
        assert not (inside[1:] & blank).any()


def labelled(text, *parts):
    spans = tuple(Span(text.index(part), text.index(part) + len(part), "X") for part in parts)
    return Example(text=text, label=spans)


def test_the_longest_words_that_fit_the_spans_are_chosen():
    handles = [labelled("see @ana at 3.5 (Paris).", "@ana", "3.5", "Paris")] * 40
    assert words_of_spans(handles) == (Words.WHITESPACE, 0)
    inside = labelled("an 84-year-old", "84")
    assert words_of_spans([*handles, inside]) == (Words.WHITESPACE, pytest.approx(1 / 121))
    assert words_of_spans([*handles, inside, inside]) == (Words.LETTERS, 0)
    assert words_of_spans([labelled("Parisian", "Paris")]) == (Words.TOKENS, 0)
    assert words_of_spans([Example(text="none", label=())]) == (Words.WHITESPACE, 0)
