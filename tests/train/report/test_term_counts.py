import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

from pipework.train.report import term_counts
from pipework.train.report.linear_baseline import WORD
from pipework.train.report.term_counts import TermCounts

WORDS = [
    "the",
    "The",
    "a",
    "ab",
    "a-b",
    "don't",
    "x",
    "X1",
    "日本語",
    "東",
    "!",
    "é",
    "\u0301",
    "ไทย",
]


def texts(count, seed):
    generator = random.Random(seed)
    rare = [f"w{number}" for number in range(40)]
    return [
        " ".join(generator.choices(WORDS + rare, k=generator.randint(0, 12))) for _ in range(count)
    ]


@pytest.mark.parametrize("min_texts", [1, 2, 5])
@pytest.mark.parametrize("at_a_time", [1, 7, 1000])
def test_counts_and_columns_are_those_of_scikit_learn(min_texts, at_a_time, monkeypatch):
    monkeypatch.setattr(term_counts, "TEXTS", at_a_time)
    known, others = (
        texts(60, seed=0),
        [*texts(40, seed=1), "", "unknown the unknown", "the a the a"],
    )
    theirs = CountVectorizer(
        token_pattern=WORD, ngram_range=(1, 2), min_df=min_texts, dtype=np.float32
    )
    ours = TermCounts(WORD, min_texts)
    pairs = [
        (theirs.fit_transform(known), ours.fit(known)),
        (theirs.transform(others), ours.of(others)),
    ]
    for expected, found in pairs:
        expected.sort_indices()
        assert (found.shape, found.dtype) == (expected.shape, np.float32)
        assert np.array_equal(found.indptr, expected.indptr)
        assert np.array_equal(found.indices, expected.indices)
        assert np.array_equal(found.data, expected.data)


def test_terms_of_too_few_texts_leave_no_column():
    counts = TermCounts(WORD, 2)
    assert counts.fit(["a b", "c"]).shape == (2, 0)
    assert counts.of(["a"]).shape == (1, 0)
