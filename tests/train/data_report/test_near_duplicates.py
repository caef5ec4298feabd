"""Rows of dev and test that are nearly the same as a row of an earlier file."""

import random
from itertools import product

import numpy as np
import pytest

from pipework.data.examples import Source
from pipework.progress import NullProgress
from pipework.train.data_report.near_duplicates import BANDS, HASHES, band_keys, near_duplicates

WORDS = ["".join(letters) for letters in product("bdfgklmnprst", "aeiou", "bdfgklmnprst")]
LINE = "scores on dev may be too high (data.near_duplicates = 0.8, 0 for no check)"


def sentence(generator, words=30):
    return " ".join(generator.choices(WORDS, k=words))


def changed(text, generator):
    """Replace a word: about a tenth of the pieces differ."""
    words = text.split()
    words[generator.randrange(len(words))] = "changed"
    return " ".join(words)


def findings_of(folder, splits, threshold=0.8):
    sources = {}
    for name, texts in splits.items():
        path = folder / f"{name}.tsv"
        path.write_text("text\tlabel\n" + "".join(f"{text}\ta\n" for text in texts))
        sources[name] = Source(path=path)
    rows = {name: len(texts) for name, texts in splits.items()}
    return list(near_duplicates(sources, rows, threshold, NullProgress()))


def test_rows_with_a_changed_word_are_found_and_equal_or_other_rows_are_not(tmp_path):
    generator = random.Random(0)
    train = [sentence(generator) for _ in range(5000)]
    dev = [sentence(generator) for _ in range(50)]
    train += ["", "short", "短い"]  # shorter than a piece
    dev += ["y", "shorty", "短"]
    dev[7] = changed(train[4321], generator).upper()  # in the second chunk
    dev[8] = train[10]
    (finding,) = findings_of(tmp_path, {"train": train, "dev": dev})
    assert finding == (
        f"1 row of dev nearly the same as a row of train, such as lines 9 and 4323: {LINE}"
    )
    assert findings_of(tmp_path, {"train": train, "dev": dev}, threshold=0.99) == []


def test_each_file_is_compared_with_each_earlier_file(tmp_path):
    generator = random.Random(1)
    texts = [sentence(generator) for _ in range(3)]
    other = [changed(text, generator) for text in texts]
    splits = {"train": [texts[0]], "dev": [other[0], texts[1], texts[2]], "test": other[1:]}
    found = findings_of(tmp_path, splits)
    assert [finding.partition(", such")[0] for finding in found] == [
        "1 row of dev nearly the same as a row of train",
        "2 rows of test nearly the same as a row of dev",
    ]


def test_similar_texts_are_candidates_with_the_expected_probability():
    generator = random.Random(2)
    hits, expected = [], []
    for _ in range(4000):
        text = sentence(generator, 14)
        pair = (text, changed(text, generator))
        first, second = ({part[at : at + 8] for at in range(len(part) - 7)} for part in pair)
        share = len(first & second) / len(first | second)
        keys = band_keys([part.encode() for part in pair])
        hits.append((keys[0] == keys[1]).any())
        expected.append(1 - (1 - share**HASHES) ** BANDS)
    assert np.mean(hits) == pytest.approx(np.mean(expected), abs=0.05)
