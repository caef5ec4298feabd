"""What is hidden: how much, what takes its place, and that words and runs are hidden whole."""

from itertools import groupby

import numpy as np
import pytest

from pipework.train.config.train import PretrainSettings
from pipework.train.pretrain.masking import NOT_TOLD, Masker, draw_lengths

MASK, SPECIAL = 1, (0, 1, 2, 3)
CHINESE = 500  # ids from here on are of writing without spaces
VOCABULARY = 1000


def masker(**settings):
    return Masker(
        settings=PretrainSettings(**settings),
        mask_id=MASK,
        ordinary=np.arange(len(SPECIAL), VOCABULARY),
        unspaced_V=np.arange(VOCABULARY) >= CHINESE,
    )


def english(rows, random):
    """Rows of 20 texts each, of words of 1 to 3 tokens, with a special token before each text."""
    for _ in range(rows):
        ids, units = [], []
        for _ in range(20):
            ids.append(2)
            units.append(True)
            for size in random.integers(1, 4, 10).tolist():
                ids += random.integers(len(SPECIAL), CHINESE, size).tolist()
                units += [True, *[False] * (size - 1)]
        yield np.array(ids), np.array(units)


def chinese(rows, random):
    for _ in range(rows):
        ids_T = random.integers(CHINESE, VOCABULARY, 400)
        ids_T[::20] = 2
        yield ids_T, np.ones(400, bool)


@pytest.mark.parametrize("language", [english, chinese])
def test_a_share_is_told_and_most_of_it_hidden(language):
    random, found = np.random.default_rng(0), masker()
    free = told = hidden = kept = 0
    for ids_T, units_T in language(60, random):
        seen_T, targets_T = found.hide(ids_T, units_T, random)
        chosen_T = targets_T != NOT_TOLD
        assert (targets_T[chosen_T] == ids_T[chosen_T]).all()
        assert (seen_T[~chosen_T] == ids_T[~chosen_T]).all()
        assert not np.isin(ids_T[chosen_T], SPECIAL).any()
        free += (~np.isin(ids_T, SPECIAL)).sum()
        told += chosen_T.sum()
        hidden += (seen_T[chosen_T] == MASK).sum()
        kept += (seen_T[chosen_T] == ids_T[chosen_T]).sum()
    assert told / free == pytest.approx(0.15, abs=0.003)
    assert hidden / told == pytest.approx(0.8, abs=0.03)
    assert kept / told == pytest.approx(0.1, abs=0.02)


def test_what_replaces_a_token_is_any_ordinary_one():
    random, found, others = np.random.default_rng(0), masker(), []
    for ids_T, units_T in english(60, random):
        seen_T, targets_T = found.hide(ids_T, units_T, random)
        others += seen_T[(targets_T != NOT_TOLD) & (seen_T != MASK) & (seen_T != ids_T)].tolist()
    assert min(others) >= len(SPECIAL)
    assert np.mean(others) == pytest.approx(VOCABULARY / 2, rel=0.1)
    assert len(set(others)) > 0.9 * len(others) * (1 - len(others) / VOCABULARY / 2)


def test_words_are_hidden_whole_and_one_by_one():
    random, found, lengths = np.random.default_rng(0), masker(), []
    for ids_T, units_T in english(40, random):
        chosen_T = found.choose(ids_T, units_T, random)
        for word in np.split(chosen_T, np.flatnonzero(units_T)[1:]):
            assert word.all() or not word.any()
        starts = chosen_T & units_T
        lengths += [len(list(run)) for hit, run in groupby(starts[units_T]) if hit]
    assert np.mean(lengths) < 1.3  # neighbours by chance only


@pytest.mark.parametrize("weights", [(4.0, 3.0, 2.0, 1.0), (6.0, 3.0, 2.0), (1.0,)])
def test_lengths_of_runs_are_drawn_by_their_weights(weights):
    found = draw_lengths(weights, 20_000, np.random.default_rng(0))
    shares = np.bincount(found, minlength=len(weights) + 1)[1:] / 20_000
    assert shares == pytest.approx(np.array(weights) / sum(weights), abs=0.02)


def test_chinese_is_hidden_in_runs_of_characters():
    random, found = np.random.default_rng(0), masker(characters=(0.0, 0.0, 1.0), mask_rate=0.05)
    lengths = []
    for ids_T, units_T in chinese(60, random):
        chosen_T = found.choose(ids_T, units_T, random)
        lengths += [len(list(run)) for hit, run in groupby(chosen_T) if hit]
    assert np.mean(np.array(lengths) == 3) > 0.7  # some touch, or end with the text or the share


def test_a_run_ends_with_its_text_and_with_its_writing():
    random, found = np.random.default_rng(0), masker(characters=(0.0, 0.0, 0.0, 1.0))
    ids_T = np.tile([2, 600, 601, 10, 602, 603], 60)
    for _ in range(50):
        chosen_T = found.choose(ids_T, np.ones(len(ids_T), bool), random)
        assert max(len(list(run)) for hit, run in groupby(chosen_T[ids_T >= CHINESE]) if hit) <= 40
        assert not chosen_T[ids_T == 2].any()
        spans = [list(run) for hit, run in groupby(range(len(ids_T)), chosen_T.__getitem__) if hit]
        alone = [span for span in spans if len(span) > 3]
        assert len(alone) < len(spans) / 4  # a word between may be taken too, by chance


def test_the_same_seed_hides_the_same():
    (ids_T, units_T), found = next(english(1, np.random.default_rng(0))), masker()
    first, again, other = (
        found.hide(ids_T, units_T, np.random.default_rng((0, epoch, 5)))[1] for epoch in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_one_long_word_is_told_all_the_same():
    ids_T, units_T = np.arange(10, 16), np.array([True, *[False] * 5])
    assert masker().choose(ids_T, units_T, np.random.default_rng(0)).all()
    assert not masker().choose(np.array([2, 3]), np.ones(2, bool), np.random.default_rng(0)).any()
