from collections import Counter

from pipework.export.parity.case import REPEATS, SIZES, batches

LENGTHS = [2, 60, 3, 64, 7, 7, 30, 12, 9, 64, 5]


def test_each_input_is_asked_for_alone_and_in_every_size():
    found = batches(LENGTHS)
    for size in SIZES:
        rule = "alone" if size == 1 else f"by {size} in order"
        asked = [row for batch in found if batch.rule == rule for row in batch.rows]
        assert sorted(asked) == list(range(len(LENGTHS)))
        assert max(len(batch.rows) for batch in found if batch.rule == rule) == min(size, 11)


def test_some_stand_first_and_last_among_longer_and_among_shorter_ones():
    found = {rule: [] for rule in ("first among longer", "last among shorter")}
    for batch in batches(LENGTHS):
        found.setdefault(batch.rule, []).append([LENGTHS[row] for row in batch.rows])
    assert [2, 3, 64] in found["first among longer"]
    assert [3, 64, 2] in found["last among longer"]
    assert [2, 60, 64] in found["last among shorter"] or [2, 64, 64] in found["last among shorter"]
    assert all(own <= min(others) for own, *others in found["first among longer"])
    assert all(own >= max(others) for *others, own in found["last among shorter"])


def test_one_is_repeated_in_one_batch():
    repeated = [batch.rows for batch in batches(LENGTHS) if batch.rule == "repeated"]
    assert all(len(set(rows)) == 1 and len(rows) == REPEATS for rows in repeated)
    assert {LENGTHS[rows[0]] for rows in repeated} >= {2, 64}


def test_a_shuffled_order_is_another_and_the_same_each_time():
    rows = [
        row for batch in batches(LENGTHS) if batch.rule.endswith("shuffled") for row in batch.rows
    ]
    assert rows != sorted(rows)
    assert Counter(rows) == Counter(range(len(LENGTHS)))
    assert batches(LENGTHS) == batches(LENGTHS)


def test_one_input_is_enough():
    assert {batch.rule for batch in batches([4])} >= {"alone", "repeated"}
