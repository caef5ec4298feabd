from collections import Counter

from pipework.export.parity.case import REPEATS, SIZES, batch_mixes

LENGTHS = [2, 60, 3, 64, 7, 7, 30, 12, 9, 64, 5]


def test_each_input_is_in_a_batch_of_every_size():
    found = batch_mixes(LENGTHS)
    for size in SIZES:
        rule = "alone" if size == 1 else f"by {size} in order"
        rows = [row for batch in found if batch.rule == rule for row in batch.rows]
        assert sorted(rows) == list(range(len(LENGTHS)))
        assert max(len(batch.rows) for batch in found if batch.rule == rule) == min(size, 11)


def test_inputs_are_first_and_last_among_longer_and_shorter_inputs():
    found = {rule: [] for rule in ("first among longer", "last among shorter")}
    for batch in batch_mixes(LENGTHS):
        found.setdefault(batch.rule, []).append([LENGTHS[row] for row in batch.rows])
    assert [2, 3, 64] in found["first among longer"]
    assert [3, 64, 2] in found["last among longer"]
    assert [2, 60, 64] in found["last among shorter"] or [2, 64, 64] in found["last among shorter"]
    assert all(own <= min(others) for own, *others in found["first among longer"])
    assert all(own >= max(others) for *others, own in found["last among shorter"])


def test_some_batches_repeat_one_input():
    repeated = [batch.rows for batch in batch_mixes(LENGTHS) if batch.rule == "repeated"]
    assert all(len(set(rows)) == 1 and len(rows) == REPEATS for rows in repeated)
    assert {LENGTHS[rows[0]] for rows in repeated} >= {2, 64}


def test_the_shuffled_order_is_deterministic():
    rows = [
        row
        for batch in batch_mixes(LENGTHS)
        if batch.rule.endswith("shuffled")
        for row in batch.rows
    ]
    assert rows != sorted(rows)
    assert Counter(rows) == Counter(range(len(LENGTHS)))
    assert batch_mixes(LENGTHS) == batch_mixes(LENGTHS)


def test_a_single_input_has_batches():
    assert {batch.rule for batch in batch_mixes([4])} >= {"alone", "repeated"}
