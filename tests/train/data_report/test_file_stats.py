import random

from pipework.data.examples import Example
from pipework.tasks.registry import task_type
from pipework.train.data_report.file_stats import FileStats, Lengths


def stats_of(kind, *rows, names=None):
    stats = FileStats(names, task_type(kind))
    for row in rows:  # chunks of one row: statistics may not depend on chunk boundaries
        stats.add([row])
    return stats


def test_each_label_of_a_row_is_counted_in_any_order():
    stats = stats_of(
        "multi_label",
        Example(text="x", label=("a", "b")),
        Example(text="x", label=("1", "0")),
        Example(text="y", label=("a",)),
        Example(text="y", label=()),
        names=["a", "b"],
    )
    assert stats.labels == {"a": 3, "b": 2}
    assert stats.conflicting() == 1


def test_a_sentence_with_other_entities_is_a_different_text():
    spans = [((0, 1), (2, 3)), ((2, 3), (0, 1)), ((0, 1), (2, 3))]
    rows = [Example(text="a b", entities=entities, label="x") for entities in spans]
    texts, rows_of_each = stats_of("single_label", *rows).texts()
    assert (len(texts), sorted(rows_of_each)) == (2, [1, 2])


def test_the_texts_of_a_pair_are_distinguished():
    pairs = [("a b", "c"), ("a", "b c"), ("A  b", "C"), ("a b c", None)]
    rows = [Example(text=text, text_pair=pair) for text, pair in pairs]
    assert sorted(stats_of("single_label", *rows).texts()[1]) == [1, 1, 2]


def test_percentiles_equal_those_of_the_sorted_lengths():
    generator = random.Random(0)
    lengths, histogram = [generator.randrange(300) for _ in range(999)], Lengths()
    for start in range(0, 999, 100):
        histogram.add(lengths[start : start + 100])
    ordered = sorted(lengths)
    assert histogram.percentiles() == (ordered[499], ordered[949], ordered[998])
    assert histogram.rows == 999
    assert histogram.total_up_to(200) == sum(min(length, 200) for length in lengths)
    assert histogram.above(200) == sum(length > 200 for length in lengths)
    limit = histogram.limit_for(0.01)
    assert histogram.above(limit) <= 9 < histogram.above(limit - 1)
