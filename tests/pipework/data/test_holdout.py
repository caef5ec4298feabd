import json
from collections import Counter

import pytest

from pipework.data.examples import Source
from pipework.errors import DataError
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Reading

NUMBERS = Reading(text=0, label=1)


@pytest.mark.parametrize("turn", [False, True])
def test_each_label_has_its_share_of_a_stratified_part(tmp_path, turn):
    labels = ["a"] * 120 + ["b"] * 25 + ["c"] * 5
    lines = [f"text {number}\t{label}" for number, label in enumerate(labels)]
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(reversed(lines) if turn else lines))

    def rows(**part):
        chosen = Part(seed=3, stratified=True, held_out=True).model_copy(update=part)
        return [*Source(path=path, reading=NUMBERS, part=chosen).rows()]

    dev, test = rows(rows=30), rows(rows=60, after=30)
    for part in dev, test:
        assert Counter(row.label for row in part) == {"a": 24, "b": 5, "c": 1}
    texts = [row.text for part in (dev, test, rows(rows=60, held_out=False)) for row in part]
    assert sorted(texts) == sorted(line.split("\t")[0] for line in lines)
    assert {row.text for row in rows(rows=20)} < {row.text for row in dev}
    assert min(row.text for row in dev) == "text 102"  # also in the other order of the file


def held_out_by_group(path, **part):
    chosen = Part(seed=3, held_out=True, group="author").model_copy(update=part)
    return [*Source(path=path, reading=Reading(label=None), part=chosen).rows()]


def test_rows_of_a_group_are_held_out_together(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"text {number}", "author": number % 25} for number in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dev, test, train = (
        held_out_by_group(path, **part)
        for part in ({"rows": 10}, {"rows": 30, "after": 10}, {"rows": 30, "held_out": False})
    )
    authors = [{int(row.text[5:]) % 25 for row in part} for part in (dev, test, train)]
    assert [len(part) for part in (dev, test, train)] == [12, 20, 68]  # whole groups of 4
    assert [len(found) for found in authors] == [3, 5, 17]
    assert set.union(*authors) == {*range(25)}


@pytest.mark.parametrize(
    ("author", "message"),
    [("one", "groups of data.group are too large"), (" ", "the group at 'author' is empty")],
)
def test_a_group_of_all_rows_and_an_empty_group_are_refused(tmp_path, author, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a", "author": author}) + "\n")
    path.write_text(path.read_text() + json.dumps({"text": "b", "author": author}) + "\n")
    with pytest.raises(DataError, match=message):
        held_out_by_group(path, rows=1, held_out=False)


def test_a_file_without_columns_has_no_groups(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("Ana\tB-PER\n\nBob\tB-PER\n")
    with pytest.raises(DataError, match=r"format conll has no column 'author'"):
        held_out_by_group(path, rows=1)
