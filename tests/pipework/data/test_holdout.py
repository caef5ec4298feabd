from collections import Counter

import pytest

from pipework.data.examples import Source
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
