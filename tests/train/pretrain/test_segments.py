"""Texts are split into pieces of limited size, and documents into adjacent segments."""

from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from pipework.text.encoding import TextEncoder
from pipework.train.pretrain.segments import cut_documents, cut_texts

WORDS = {f"w{number}": number for number in range(200)}


@pytest.fixture
def encoder():
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextEncoder(tokenizer, max_length=8, type_ids=False)


def text(start, stop):
    return " ".join(f"w{number}" for number in range(start, stop))


def test_a_long_text_is_split_without_losing_tokens(encoder):
    pieces = list(cut_texts([text(0, 20), "", text(20, 23)], encoder, 8))
    assert [piece.ids.tolist() for piece in pieces] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
        [20, 21, 22],
    ]
    assert {piece.middle for piece in pieces} == {0}
    assert sum(piece.size for piece in pieces) >= len(text(0, 20)) + len(text(20, 23))


def test_pairs_are_adjacent_segments(encoder):
    bounds = [0, 3, 5, 9, 40, 43, 44, 50, 61]
    document = "\n".join(text(*pair) for pair in pairwise(bounds))
    pieces = list(cut_documents([document, text(100, 102)], encoder, 12, np.random.default_rng(0)))
    assert np.concatenate([piece.ids for piece in pieces]).tolist() == [*range(61), 100, 101]
    assert all(len(piece.ids) <= 12 for piece in pieces)
    ends = {*bounds, *range(9, 40, 6)}  # a segment longer than half the room is split
    for piece in pieces[:-1]:
        assert not piece.middle or int(piece.ids[piece.middle]) in {end % 200 for end in ends} | {
            15,
            21,
        }
    assert pieces[-1].middle == 0  # a single segment
    assert sum(piece.middle > 0 for piece in pieces) >= 4


def test_a_word_never_spans_two_segments(encoder):
    document = "\n".join(text(number, number + 1) for number in range(50))
    for piece in cut_documents([document], encoder, 12, np.random.default_rng(0)):
        assert len(set(piece.words.tolist())) == len(piece.ids)


def test_a_tenth_of_the_pairs_has_a_smaller_budget(encoder):
    document = "\n".join(text(number % 200, number % 200 + 1) for number in range(20_000))
    sizes = [
        len(piece.ids) for piece in cut_documents([document], encoder, 40, np.random.default_rng(0))
    ]
    assert np.mean(np.array(sizes) < 40) == pytest.approx(0.1, abs=0.04)
