import pytest

from pipework.data.entities import check_spans, parse_marked_text
from pipework.errors import InputError


def entities_of(text):
    plain, spans = parse_marked_text(text)
    return plain, [plain[start:end] for start, end in spans]


def test_tags_are_removed_and_the_spans_cover_the_entities():
    parsed = entities_of("The <e1>cup</e1> holds <e2>hot tea</e2>.")
    assert parsed == ("The cup holds hot tea.", ["cup", "hot tea"])


def test_the_entities_may_be_in_either_order():
    assert entities_of("<e2>tea</e2> in a <e1>cup</e1>") == ("tea in a cup", ["cup", "tea"])


def test_entities_may_touch_each_other_and_both_ends():
    assert entities_of("<e1>茶</e1><e2>杯</e2>") == ("茶杯", ["茶", "杯"])


@pytest.mark.parametrize("text", ["<", "$5 #1 <e3>x</e3> </e", "a < b <e10> <E1>", "&lt;e1&gt;"])
def test_other_tags_are_text(text):
    assert entities_of(f"{text} <e1>a</e1> {text} <e2>b</e2> {text}") == (
        f"{text} a {text} b {text}",
        ["a", "b"],
    )


def test_white_space_at_the_ends_of_an_entity_is_removed():
    assert entities_of("a <e1> cup </e1> of <e2>\ttea</e2>")[1] == ["cup", "tea"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain", "expected <e1> once, found it 0 times"),
        ("<e1>a <e2>b</e2>", "expected </e1> once, found it 0 times"),
        ("<e1>a</e1> b", "expected <e2> once, found it 0 times"),
        ("<e1>a</e1> <e1>b</e1> <e2>c</e2>", "expected <e1> once, found it 2 times"),
        ("<e1>a <e2>b</e2></e1>", "in the order <e1> <e2> </e2> </e1>"),
        ("</e1>a<e1> <e2>b</e2>", "in the order </e1> <e1> <e2> </e2>"),
        ("<e1>a</e1> <e2> </e2>", "entity e2 holds no text"),
        ("<e1></e1> <e2>b</e2>", r"entity e1 is \[0, 0\]"),
    ],
)
def test_invalid_tags_are_reported(text, message):
    with pytest.raises(InputError, match=message):
        parse_marked_text(text)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (((0, 3), (2, 5)), "overlap"),
        (((2, 5), (0, 3)), "overlap"),
        (((0, 3), (1, 2)), "overlap"),
        (((0, 3), (4, 9)), r"entity e2 is \[4, 9\], in a text of 8 characters"),
        (((-1, 3), (4, 5)), r"entity e1 is \[-1, 3\]"),
        (((3, 3), (4, 5)), r"entity e1 is \[3, 3\]"),
        (((5, 3), (6, 7)), r"entity e1 is \[5, 3\]"),
    ],
)
def test_invalid_and_overlapping_spans_are_rejected(spans, message):
    with pytest.raises(InputError, match=message):
        check_spans("abcdefgh", spans)


def test_spans_that_touch_do_not_overlap():
    assert check_spans("ab", [[1, 2], [0, 1]]) == ((1, 2), (0, 1))
