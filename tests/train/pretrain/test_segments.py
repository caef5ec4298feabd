"""Texts are cut into pieces that fit, and documents into neighbouring segments."""

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


def test_a_long_text_is_cut_and_nothing_of_it_is_lost(encoder):
    cut = list(cut_texts([text(0, 20), "", text(20, 23)], encoder, 8))
    assert [one.ids.tolist() for one in cut] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
        [20, 21, 22],
    ]
    assert {one.middle for one in cut} == {0}
    assert sum(one.size for one in cut) >= len(text(0, 20)) + len(text(20, 23))


def test_pairs_are_segments_that_follow_one_another(encoder):
    bounds = [0, 3, 5, 9, 40, 43, 44, 50, 61]
    document = "\n".join(text(*pair) for pair in pairwise(bounds))
    cut = list(cut_documents([document, text(100, 102)], encoder, 12, np.random.default_rng(0)))
    assert np.concatenate([one.ids for one in cut]).tolist() == [*range(61), 100, 101]
    assert all(len(one.ids) <= 12 for one in cut)
    ends = {*bounds, *range(9, 40, 6)}  # a segment of over half the room is cut
    for one in cut[:-1]:
        assert not one.middle or int(one.ids[one.middle]) in {end % 200 for end in ends} | {15, 21}
    assert cut[-1].middle == 0  # it has no neighbour
    assert sum(one.middle > 0 for one in cut) >= 4


def test_words_of_two_segments_are_never_one(encoder):
    document = "\n".join(text(number, number + 1) for number in range(50))
    for one in cut_documents([document], encoder, 12, np.random.default_rng(0)):
        assert len(set(one.words.tolist())) == len(one.ids)


def test_a_tenth_of_the_pairs_has_less_room(encoder):
    document = "\n".join(text(number % 200, number % 200 + 1) for number in range(20_000))
    sizes = [
        len(one.ids) for one in cut_documents([document], encoder, 40, np.random.default_rng(0))
    ]
    assert np.mean(np.array(sizes) < 40) == pytest.approx(0.1, abs=0.04)
