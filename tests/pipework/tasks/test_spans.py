"""Spans in data files, and the tags of tokens: which sequences are valid, and their spans."""

import itertools

import numpy as np
import pytest

from pipework.errors import InputError
from pipework.tasks.spans import Span, TagScheme, bio_tags, parse_spans, spans_of_tokens

TEXT = "Ana met Bob."
EXPECTED = (Span(0, 3, "PER"), Span(8, 11, "PER"))
BIO = bio_tags(("A", "B"))
SCHEMES = {
    "BIO": BIO,
    "BIOES": ("O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"),
    "BMES": ("B-A", "M-A", "E-A", "S-A", "O"),
    "IO": ("O", "I-A", "I-B"),
    "names": ("O", "A", "B"),
}


@pytest.mark.parametrize(
    "value",
    [
        [{"start": 8, "end": 11, "label": "PER"}, {"start": 0, "end": 3, "label": "PER"}],
        '[{"start": 0, "end": 3, "label": "PER"}, {"start": 8, "end": 11, "label": "PER"}]',
        [
            {"entity_type": "PER", "start_position": 0, "end_position": 3},
            {"entity_type": "PER", "start_position": 8, "end_position": 11},
        ],
        [
            {"value": {"start": 0, "end": 3, "text": "Ana", "labels": ["PER"]}},
            {"value": {"start": 8, "end": 11, "text": "Bob", "labels": ["PER"]}},
        ],
        [
            {"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3},
            {"id": 2, "label": "PER", "start_offset": 8, "end_offset": 11},
        ],
        [[0, 3, "PER"], [8, 11, "PER"]],
        {"entities": [[0, 3, "PER"], [8, 11, "PER"]]},
    ],
    ids=["objects", "JSON", "presidio", "Label Studio", "doccano", "lists", "spaCy"],
)
def test_spans_are_read_in_the_forms_of_annotation_tools(value):
    assert parse_spans(value) == EXPECTED
    assert parse_spans([]) == ()


def test_equal_spans_count_once_and_relations_are_left_out():
    relation = {"type": "relation", "from_id": "a", "to_id": "b"}
    assert parse_spans([[0, 3, "PER"], [0, 3, "PER"], [8, 11, "PER"], relation]) == EXPECTED


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "found null"),
        ("PER", "found the text 'PER'"),
        ({"start": 0}, "found dict"),
        ([{"start": 0, "end": 3}], "found {'start': 0, 'end': 3}"),
        ([{"start": 3, "end": 3, "label": "PER"}], "expected spans as"),
        ([{"start": -1, "end": 3, "label": "PER"}], "expected spans as"),
        ([{"start": 0, "end": "3", "label": "PER"}], "expected spans as"),
        ([[0, 3, " "]], "expected spans as"),
        ([[0, 3]], "expected spans as"),
    ],
)
def test_other_values_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        parse_spans(value)


def test_white_space_at_the_ends_is_no_part_of_a_span():
    assert Span(3, 8, "X").strip(TEXT) == Span(4, 7, "X")
    for span in (Span(8, 13, "X"), Span(3, 4, "X")):
        with pytest.raises(InputError, match="expected a span within the text"):
            span.strip(TEXT)


def spans(tags, names):
    """Return the spans of the tags of one text as (first, last, type)."""
    indices = np.array([names.index(tag) for tag in tags], np.int64)
    found = TagScheme.of(names).spans(indices, np.zeros(len(tags), np.int64))
    return [*zip(found.first.tolist(), found.last.tolist(), found.labels, strict=True)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-A I-A O B-B", [(1, 2, "A"), (4, 4, "B")]),
        ("B-A B-A I-A", [(0, 0, "A"), (1, 2, "A")]),
        ("I-A I-A O I-B", [(0, 1, "A"), (3, 3, "B")]),  # as seqeval's conlleval
        ("B-A I-B", [(0, 0, "A"), (1, 1, "B")]),
        ("B-A M-A E-A S-A B-A E-A", [(0, 2, "A"), (3, 3, "A"), (4, 5, "A")]),
        ("B-A E-A E-A", [(0, 1, "A"), (2, 2, "A")]),
        ("S-A I-A", [(0, 0, "A"), (1, 1, "A")]),
        ("A A B O A", [(0, 1, "A"), (2, 2, "B"), (4, 4, "A")]),
    ],
)
def test_the_spans_of_any_sequence_of_tags(tags, expected):
    names = tuple(dict.fromkeys(["O", *tags.split()]))
    if "B-A" in names and "I-A" not in names and not any(name[0] in "ME" for name in names):
        names = (*names, "I-A")
    assert spans(tags.split(), names) == expected


def test_spans_end_with_their_text():
    tags = np.array([BIO.index(tag) for tag in ("B-A", "I-A", "I-A")], np.int64)
    found = TagScheme.of(BIO).spans(tags, np.array([0, 0, 1]))
    assert (found.first.tolist(), found.last.tolist()) == ([0, 2], [1, 2])


def test_tagged_tokens_have_the_characters_of_their_words():
    tokens = spans_of_tokens(["B-PER", "O", "S-PER"], [(0, 3), (4, 7), (8, 11)])
    assert parse_spans(tokens) == EXPECTED


@pytest.mark.parametrize("name", SCHEMES)
def test_the_best_valid_sequence_is_found(name):
    scheme, tags = TagScheme.of(SCHEMES[name]), len(SCHEMES[name])
    random = np.random.default_rng(0)
    for _ in range(20):
        scores = random.standard_normal((4, tags))
        valid = [
            sequence
            for sequence in itertools.product(range(tags), repeat=4)
            if scheme.may_begin_C[sequence[0]]
            and scheme.may_end_C[sequence[-1]]
            and all(scheme.may_follow_CC[pair] for pair in itertools.pairwise(sequence))
        ]
        best = max(valid, key=lambda sequence: scores[range(4), sequence].sum())
        # Several texts at a time: of other lengths, and valid as they are.
        outside = SCHEMES[name].index("O")
        plain = np.zeros((2, tags))
        plain[:, outside] = 1
        parts = (plain, scores, scores[:1], scores, plain)
        inputs = np.repeat([3, 5, 6, 7, 9], [len(part) for part in parts])
        found = scheme.best(np.concatenate(parts), inputs).tolist()
        (one,) = scheme.best(scores[:1], np.zeros(1, np.int64))
        assert found == [outside, outside, *best, one, *best, outside, outside]


def test_a_span_of_iob1_begins_with_an_inner_tag():
    scores = np.eye(len(BIO))[[BIO.index(tag) for tag in ("O", "I-A", "I-A", "B-A", "O")]]
    inputs = np.zeros(5, np.int64)
    strict, loose = (TagScheme.of(BIO, inner_begins=begins) for begins in (False, True))
    assert loose.best(scores, inputs).tolist() == scores.argmax(axis=1).tolist()
    assert strict.best(scores, inputs).tolist() != scores.argmax(axis=1).tolist()
    assert TagScheme.of(SCHEMES["BIOES"], inner_begins=True).may_begin_C.sum() == 5


def test_the_valid_sequences_of_each_scheme():
    counts = {}
    for name, tags in SCHEMES.items():
        scheme = TagScheme.of(tags)
        counts[name] = sum(
            bool(
                scheme.may_begin_C[first]
                & scheme.may_follow_CC[first, last]
                & scheme.may_end_C[last]
            )
            for first, last in itertools.product(range(len(tags)), repeat=2)
        )
    # BIO: O or B first, then O, B or I of its type. BIOES: O or S twice, or B and E.
    assert counts == {"BIO": 9 + 2, "BIOES": 9 + 2, "BMES": 4 + 1, "IO": 9, "names": 9}


@pytest.mark.parametrize("name", SCHEMES)
def test_the_tags_of_a_span_are_valid_and_have_this_span(name):
    scheme = TagScheme.of(SCHEMES[name])
    for length in range(1, 5):
        tags = np.array(scheme.tags_of("A", length))
        found = scheme.spans(tags, np.zeros(length, np.int64))
        assert (found.first.tolist(), found.last.tolist(), found.labels) == (
            [0],
            [length - 1],
            ["A"],
        )
        np.testing.assert_array_equal(scheme.best(np.eye(len(SCHEMES[name]))[tags], tags * 0), tags)
