import random

from pipework.data.examples import Example
from pipework.run_folder.task import TaskKind
from pipework.train.data_report.file_stats import Lengths, Reading


def reading_of(kind, *rows, names=None):
    found = Reading(names, kind)
    for row in rows:  # chunks of one row: what is found may not depend on where chunks end
        found.add([row])
    return found


def test_each_of_several_labels_counts_and_their_order_does_not():
    found = reading_of(
        TaskKind.MULTI_LABEL,
        Example(text="x", label=("a", "b")),
        Example(text="x", label=("1", "0")),
        Example(text="y", label=("a",)),
        Example(text="y", label=()),
        names=["a", "b"],
    )
    assert found.labels == {"a": 3, "b": 2}
    assert found.conflicting() == 1


def test_one_sentence_with_other_entities_is_another_text():
    spans = [((0, 1), (2, 3)), ((2, 3), (0, 1)), ((0, 1), (2, 3))]
    rows = [Example(text="a b", entities=one, label="x") for one in spans]
    texts, rows_of_each = reading_of(TaskKind.SINGLE_LABEL, *rows).texts()
    assert (len(texts), sorted(rows_of_each)) == (2, [1, 2])


def test_the_texts_of_a_pair_are_told_apart():
    pairs = [("a b", "c"), ("a", "b c"), ("A  b", "C"), ("a b c", None)]
    rows = [Example(text=text, text_pair=pair) for text, pair in pairs]
    assert sorted(reading_of(TaskKind.SINGLE_LABEL, *rows).texts()[1]) == [1, 1, 2]


def test_lengths_are_those_of_a_sorted_list():
    chance = random.Random(0)
    lengths, found = [chance.randrange(300) for _ in range(999)], Lengths()
    for start in range(0, 999, 100):
        found.add(lengths[start : start + 100])
    ordered = sorted(lengths)
    assert found.percentiles() == (ordered[499], ordered[949], ordered[998])
    assert (found.rows, found.total) == (999, sum(lengths))
    assert found.at_least(200) == sum(length >= 200 for length in lengths)
