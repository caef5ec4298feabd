"""Masking: rates, replacements, and whole words and spans."""

from itertools import groupby

import numpy as np
import pytest

from pipework.train.config.train import PretrainSettings
from pipework.train.pretrain.model_inputs import NO_TARGET, Masker, draw_lengths

MASK, SPECIAL = 1, (0, 1, 2, 3)
CHINESE = 500  # ids from here on are in a script without spaces
VOCABULARY = 1000


def masker(**settings):
    return Masker(
        settings=PretrainSettings(**settings),
        mask_id=MASK,
        ordinary=np.arange(len(SPECIAL), VOCABULARY),
        unspaced_V=np.arange(VOCABULARY) >= CHINESE,
    )


def english(rows, random):
    """Rows of 20 texts of words with 1 to 3 tokens, and a special token before each text."""
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
def test_the_rates_of_masked_random_and_unchanged_tokens(language):
    random, token_masker = np.random.default_rng(0), masker()
    free = chosen = masked = unchanged = 0
    for ids_T, units_T in language(60, random):
        input_T, targets_T = token_masker.mask(ids_T, units_T, random)
        chosen_T = targets_T != NO_TARGET
        assert (targets_T[chosen_T] == ids_T[chosen_T]).all()
        assert (input_T[~chosen_T] == ids_T[~chosen_T]).all()
        assert not np.isin(ids_T[chosen_T], SPECIAL).any()
        free += (~np.isin(ids_T, SPECIAL)).sum()
        chosen += chosen_T.sum()
        masked += (input_T[chosen_T] == MASK).sum()
        unchanged += (input_T[chosen_T] == ids_T[chosen_T]).sum()
    assert chosen / free == pytest.approx(0.15, abs=0.003)
    assert masked / chosen == pytest.approx(0.8, abs=0.03)
    assert unchanged / chosen == pytest.approx(0.1, abs=0.02)


def test_random_replacements_are_uniform_over_ordinary_tokens():
    random, token_masker, others = np.random.default_rng(0), masker(), []
    for ids_T, units_T in english(60, random):
        input_T, targets_T = token_masker.mask(ids_T, units_T, random)
        others += input_T[
            (targets_T != NO_TARGET) & (input_T != MASK) & (input_T != ids_T)
        ].tolist()
    assert min(others) >= len(SPECIAL)
    assert np.mean(others) == pytest.approx(VOCABULARY / 2, rel=0.1)
    assert len(set(others)) > 0.9 * len(others) * (1 - len(others) / VOCABULARY / 2)


def test_words_are_masked_whole_and_individually():
    random, token_masker, lengths = np.random.default_rng(0), masker(), []
    for ids_T, units_T in english(40, random):
        chosen_T = token_masker.choose(ids_T, units_T, random)
        for word in np.split(chosen_T, np.flatnonzero(units_T)[1:]):
            assert word.all() or not word.any()
        starts = chosen_T & units_T
        lengths += [len(list(run)) for is_masked, run in groupby(starts[units_T]) if is_masked]
    assert np.mean(lengths) < 1.3  # adjacent words are masked only by coincidence


@pytest.mark.parametrize("weights", [(4.0, 3.0, 2.0, 1.0), (6.0, 3.0, 2.0), (1.0,)])
def test_span_lengths_are_drawn_with_the_given_weights(weights):
    lengths = draw_lengths(weights, 20_000, np.random.default_rng(0))
    shares = np.bincount(lengths, minlength=len(weights) + 1)[1:] / 20_000
    assert shares == pytest.approx(np.array(weights) / sum(weights), abs=0.02)


def test_chinese_is_masked_in_character_spans():
    random, token_masker = (
        np.random.default_rng(0),
        masker(characters=(0.0, 0.0, 1.0), mask_rate=0.05),
    )
    lengths = []
    for ids_T, units_T in chinese(60, random):
        chosen_T = token_masker.choose(ids_T, units_T, random)
        lengths += [len(list(run)) for is_masked, run in groupby(chosen_T) if is_masked]
    assert (
        np.mean(np.array(lengths) == 3) > 0.7
    )  # some are adjacent, or end with the text or the budget


def test_a_span_does_not_cross_texts_or_scripts():
    random, token_masker = np.random.default_rng(0), masker(characters=(0.0, 0.0, 0.0, 1.0))
    ids_T = np.tile([2, 600, 601, 10, 602, 603], 60)
    for _ in range(50):
        chosen_T = token_masker.choose(ids_T, np.ones(len(ids_T), bool), random)
        assert (
            max(
                len(list(run))
                for is_masked, run in groupby(chosen_T[ids_T >= CHINESE])
                if is_masked
            )
            <= 40
        )
        assert not chosen_T[ids_T == 2].any()
        spans = [
            list(run)
            for is_masked, run in groupby(range(len(ids_T)), chosen_T.__getitem__)
            if is_masked
        ]
        alone = [span for span in spans if len(span) > 3]
        assert len(alone) < len(spans) / 4  # a word between two spans may be masked by coincidence


def test_masking_is_reproducible_from_a_seed():
    (ids_T, units_T), token_masker = next(english(1, np.random.default_rng(0))), masker()
    first, again, other = (
        token_masker.mask(ids_T, units_T, np.random.default_rng((0, epoch, 5)))[1]
        for epoch in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_a_word_longer_than_the_budget_is_masked():
    ids_T, units_T = np.arange(10, 16), np.array([True, *[False] * 5])
    assert masker().choose(ids_T, units_T, np.random.default_rng(0)).all()
    assert not masker().choose(np.array([2, 3]), np.ones(2, bool), np.random.default_rng(0)).any()
