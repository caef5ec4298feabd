"""Workloads have the requested texts, and the same texts for the same seed."""

import numpy as np
import pytest

from pipework.benchmarks.load.workload import MEAN_WORDS, Workload
from pipework.data.entities import parse_marked_text
from pipework.data.examples import Source
from pipework.errors import DataError
from pipework.run_folder.read_options import Reading


def source(tmp_path, lines, *, text_pair=None):
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Source(path=path, reading=Reading(text=0, text_pair=text_pair, label=None))


def test_synthetic_lengths_are_log_normal_with_the_stated_mean():
    texts = Workload.synthetic(texts_per_request=1, seed=0).examples
    words = np.array([len(example.text.split()) for example in texts])
    assert abs(words.mean() - MEAN_WORDS) < 1
    # The median of a log-normal distribution is below its mean, and its logarithm is symmetric.
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
    assert {example.text for example in first.examples} == {
        example.text for example in other.examples
    }
    assert len(first.examples) == 50


def test_requests_have_the_requested_number_of_texts(tmp_path):
    rows = source(tmp_path, ["央行", "b", "c", "d", "e"])
    requests = Workload.read(rows, texts_per_request=2, seed=0).requests
    assert [len(examples) for examples in requests] == [2, 2]
    assert any(example.text == "央行" for examples in requests for example in examples)


def test_a_file_with_fewer_rows_than_a_request_is_repeated(tmp_path):
    (request,) = Workload.read(source(tmp_path, ["a", "b"]), texts_per_request=5, seed=0).requests
    assert len(request) == 5


def test_pairs_are_read_and_generated(tmp_path):
    rows = source(tmp_path, ["a\tb"], text_pair=1)
    workload = Workload.read(rows, texts_per_request=1, seed=0)
    assert workload.pair
    assert [(example.text, example.text_pair) for example in workload.requests[0]] == [("a", "b")]
    assert Workload.synthetic(texts_per_request=1, seed=0, fields=("text", "text_pair")).pair


def test_the_summary_of_a_workload_has_no_folder(tmp_path):
    rows = source(tmp_path, ["a" * 10] * 95 + ["b" * 30] * 5)
    summary = Workload.read(rows, texts_per_request=4, seed=7).summary()
    assert (summary.source, summary.texts, summary.texts_per_request) == ("rows.tsv", 100, 4)
    assert (summary.mean_length, summary.seed, summary.pair) == (11.0, 7, False)
    assert summary.p95_length == 11.0  # interpolated between the 95th (10) and the 96th (30) value


def test_an_empty_file_is_reported(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(DataError, match=r"empty\.jsonl contains no rows"):
        Workload.read(Source(path=path, reading=Reading(label=None)), texts_per_request=1, seed=0)


def test_the_mean_length_can_be_chosen():
    short, long = (
        Workload.synthetic(texts_per_request=1, seed=0, mean_words=mean) for mean in (5, 50)
    )
    assert 8 < long.summary().mean_length / short.summary().mean_length < 12
    assert "mean 50 words" in long.source


def test_synthetic_texts_for_entity_models_are_marked():
    fields = ("text", "entities")
    workload = Workload.synthetic(texts_per_request=1, seed=0, fields=fields)
    for example in workload.examples:
        assert all(start < end for start, end in parse_marked_text(example.text)[1])
