"""The dictionary of train spans, the baseline of models that find spans."""

import time

import numpy as np

from pipework.data.examples import Example
from pipework.tasks.kinds import Metric, Words
from pipework.tasks.outputs import Outputs, offsets_of
from pipework.tasks.spans import Span, bio_tags
from pipework.tasks.tokens import TokenTask
from pipework.text.encoding import TextEncoder
from pipework.train.config.model import ModelSettings
from pipework.train.data.tokenizer import learn_wordpiece
from pipework.train.report.spans import SpanDictionary, dictionary_baseline
from pipework.train.report.verdict import ScoredRows

TASK = TokenTask(labels=bio_tags(("LOC", "PER")), metric=Metric.MICRO_F1, words=Words.WHITESPACE)
TRAIN = [("New York", "LOC"), ("York", "LOC"), ("Ana", "PER"), ("Kim", "PER"), ("Kim", "LOC")]


def labelled(text, *found):
    spans = [(text.index(part), text.index(part) + len(part), label) for part, label in found]
    return Example(text=text, label=tuple(Span(*span) for span in spans))


def encoder(length=64):
    tokenizer = learn_wordpiece(ModelSettings(preset="tiny"), lambda: [" ".join(dict(TRAIN))])
    return TextEncoder(tokenizer, max_length=length, type_ids=False)


def found_in(text):
    dictionary = SpanDictionary.of(
        labelled(f"in {part} on", (part, label)) for part, label in TRAIN
    )
    (places_T2,) = encoder().places([Example(text=text)], Words.WHITESPACE)
    return [(text[start:end], label) for start, end, label in dictionary.spans(text, places_T2)]


def test_the_longest_spans_with_a_single_type_are_found():
    assert found_in("Ana left New\n York, not York.") == [
        ("Ana", "PER"),
        ("New\n York", "LOC"),
        ("York", "LOC"),
    ]


def test_a_long_text_is_searched_in_time():
    long = "x" * 3000
    dictionary = SpanDictionary.of([labelled(f"in {long} on", (long, "LOC"))])
    text = "a word " * 3000
    (places_T2,) = encoder(10_000).places([Example(text=text)], Words.WHITESPACE)
    started_s = time.perf_counter()
    assert dictionary.spans(text, places_T2) == ()
    assert time.perf_counter() - started_s < 5  # minutes if each end were tried


def test_other_words_and_spans_of_several_types_are_not_found():
    assert found_in("Kim, Anas, Yorkshire, new york") == []
    assert found_in("") == []


def test_its_outputs_are_scored_as_those_of_a_model():
    train = [labelled(f"in {part} on", (part, label)) for part, label in TRAIN]
    rows = [
        labelled("Ana in New York", ("Ana", "PER"), ("New York", "LOC")),
        labelled("Kim in York", ("Kim", "PER"), ("York", "PER")),
        Example(text="", label=()),
    ]
    places = encoder().places(rows, TASK.tagged)
    truth = TASK.token_truth([("f", row.label) for row in rows], places, 64)
    offsets = offsets_of(np.array([len(one) for one in places]))
    scored = ScoredRows(
        split="dev",
        outputs=Outputs(np.zeros((offsets[-1], 5), np.float32), offsets),
        truth=truth,
        task=TASK,
        leaked_N=np.zeros(3, np.bool_),
    )
    baseline = dictionary_baseline(train, rows, scored, TASK, encoder())
    assert (baseline.name, baseline.rows) == ("a dictionary of the train spans", 5)
    # Ana, New York and York are found, York with the wrong type; Kim has two types.
    assert baseline.evaluation.score == 2 * 2 / (3 + 4)
    assert len(baseline.outputs) == 3
