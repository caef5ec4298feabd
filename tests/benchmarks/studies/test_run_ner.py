import pytest
from transformers import AutoTokenizer

from pipework.benchmarks.studies.run_ner import IGNORED, _encoded, _micro_f1, _read_words, _words
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
    read = tags.split()
    words = [*range(len(read))]
    assert _micro_f1([_words(ROW, tokens=False)], [words], [read]) == pytest.approx(score)


def test_a_word_without_a_token_does_not_move_the_spans(trained_run):
    tokenizer = AutoTokenizer.from_pretrained(trained_run / "checkpoint")
    row = Example(text="Dr. \ufffd Ana Lima left.", label=(Span(6, 14, "PER"),))
    words = _words(row, tokens=True)
    read = _read_words(words, tokenizer, run_config(trained_run))
    assert read == [0, 2, 3, 4]
    assert _micro_f1([words], [read], [["O", "B-PER", "I-PER", "O"]]) == 1
