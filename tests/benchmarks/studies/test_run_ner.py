import numpy as np
import pytest
from transformers import AutoTokenizer

from pipework.benchmarks.studies.run_ner import IGNORED, _encoded, _micro_f1, _words
from pipework.data.examples import Example
from pipework.tasks.spans import Span
from pipework.train.config.run_config import run_config

TAGS = ["B-PER", "I-PER", "O"]
ROW = Example(text="Dr. Ana Lima left.", label=(Span(4, 12, "PER"),))


def test_words_have_the_tags_of_the_spans_that_they_touch():
    words = _words(ROW, tokens=False)
    assert words.words == ["Dr", ".", "Ana", "Lima", "left", "."]
    assert words.tags == ["O", "O", "B-PER", "I-PER", "O", "O"]
    assert _words(ROW, tokens=True).words == ["Dr.", "Ana", "Lima", "left."]
    assert _words(Example(text="\u738b\u4e94", label=()), tokens=True).words == ["\u738b", "\u4e94"]


def test_the_first_token_of_a_word_has_its_tag(trained_run):
    tokenizer = AutoTokenizer.from_pretrained(trained_run / "checkpoint")
    words = _words(ROW, tokens=False)
    encoded = _encoded(words, tokenizer, TAGS, run_config(trained_run))
    labels = [label for label in encoded["labels"] if label != IGNORED]
    assert labels == [2, 2, 0, 1, 2, 2]
    assert len(encoded["labels"]) == len(encoded["input_ids"]) > len(labels) + 2


@pytest.mark.parametrize(
    ("tags", "score"),
    [
        ("O O B-PER I-PER O O", 1.0),
        ("O O I-PER I-PER O O", 1.0),
        ("O O B-PER O O O", 0.0),
        ("O O B-PER I-PER O B-PER", 2 / 3),
        ("O O", 0.0),
    ],
)
def test_spans_count_with_exact_ends(tags, score):
    predicted = np.array([TAGS.index(tag) for tag in tags.split()])
    assert _micro_f1([_words(ROW, tokens=False)], [predicted], TAGS) == pytest.approx(score)
