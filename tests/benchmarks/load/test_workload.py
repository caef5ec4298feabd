"""A workload is what was asked for, and the same under the same seed."""

import numpy as np
import pytest

from pipework.benchmarks.load.workload import MEAN_WORDS, Workload
from pipework.data.entities import read_marks
from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import DataError


def source(tmp_path, lines, *, text_pair=None):
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Source(path=path, columns=Columns(text=0, text_pair=text_pair, label=None))


def test_synthetic_lengths_are_log_normal_with_the_stated_mean():
    texts = Workload.synthetic(texts_per_request=1, seed=0).examples
    words = np.array([len(one.text.split()) for one in texts])
    assert abs(words.mean() - MEAN_WORDS) < 1
    # The median of a log-normal lies below its mean, and its logarithm is symmetric.
    assert np.median(words) < 0.9 * words.mean()
    logs = np.log(words)
    assert abs(logs.mean() - np.median(logs)) < 0.05


def test_the_seed_decides_the_texts():
    first = Workload.synthetic(texts_per_request=1, seed=1)
    assert first == Workload.synthetic(texts_per_request=1, seed=1)
    assert first.examples != Workload.synthetic(texts_per_request=1, seed=2).examples


def test_the_seed_decides_the_order_of_a_file_and_nothing_is_lost(tmp_path):
    rows = source(tmp_path, [f"text {number}" for number in range(50)])
    first = Workload.read(rows, texts_per_request=1, seed=1)
    assert first == Workload.read(rows, texts_per_request=1, seed=1)
    other = Workload.read(rows, texts_per_request=1, seed=2)
    assert first.examples != other.examples
    assert {one.text for one in first.examples} == {one.text for one in other.examples}
    assert len(first.examples) == 50


def test_requests_hold_the_texts_asked_for(tmp_path):
    rows = source(tmp_path, ["央行", "b", "c", "d", "e"])
    requests = Workload.read(rows, texts_per_request=2, seed=0).requests
    assert [len(examples) for examples in requests] == [2, 2]
    assert any(one.text == "央行" for examples in requests for one in examples)


def test_a_file_with_fewer_rows_than_a_request_is_repeated(tmp_path):
    (one,) = Workload.read(source(tmp_path, ["a", "b"]), texts_per_request=5, seed=0).requests
    assert len(one) == 5


def test_pairs_are_read_and_made(tmp_path):
    rows = source(tmp_path, ["a\tb"], text_pair=1)
    workload = Workload.read(rows, texts_per_request=1, seed=0)
    assert workload.pair
    assert [(one.text, one.text_pair) for one in workload.requests[0]] == [("a", "b")]
    assert Workload.synthetic(texts_per_request=1, seed=0, fields=("text", "text_pair")).pair


def test_a_workload_describes_itself_without_its_folder(tmp_path):
    rows = source(tmp_path, ["a" * 10] * 95 + ["b" * 30] * 5)
    found = Workload.read(rows, texts_per_request=4, seed=7).summary()
    assert (found.source, found.texts, found.texts_per_request) == ("rows.tsv", 100, 4)
    assert (found.mean_length, found.seed, found.pair) == (11.0, 7, False)
    assert found.p95_length == 11.0  # between the 95th (10) and the 96th (30), a twentieth up


def test_an_empty_file_is_named(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(DataError, match=r"empty\.jsonl holds no rows"):
        Workload.read(Source(path=path, columns=Columns(label=None)), texts_per_request=1, seed=0)


def test_the_mean_length_can_be_chosen():
    short, long = (
        Workload.synthetic(texts_per_request=1, seed=0, mean_words=mean) for mean in (5, 50)
    )
    assert 8 < long.summary().mean_length / short.summary().mean_length < 12
    assert "mean 50 words" in long.source


def test_a_model_of_two_entities_is_sent_marked_texts():
    fields = ("text", "entities")
    workload = Workload.synthetic(texts_per_request=1, seed=0, fields=fields)
    for example in workload.examples:
        assert all(start < end for start, end in read_marks(example.text)[1])
