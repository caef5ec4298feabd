import os
import subprocess
import sys

import pytest

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Reading
from pipework.train.data.labels import class_labels


def source(tmp_path, labels, part=None, **how):
    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"{n}\t{label}\n" for n, label in enumerate(labels)))
    return Source(path=path, reading=Reading(text=0, label=1, **how), part=part)


def test_labels_are_sorted_for_any_order_of_rows(tmp_path):
    assert class_labels(None, source(tmp_path, "cab")) == ("a", "b", "c")


def test_numbers_are_sorted_numerically(tmp_path):
    assert class_labels(None, source(tmp_path, ["10", "9", "0"])) == ("0", "9", "10")


def test_a_file_of_names_fixes_the_order(tmp_path):
    names = tmp_path / "class.txt"
    names.write_text("sport\r\nfinance")  # no line end after the last name
    assert class_labels(names, source(tmp_path, "01")) == ("sport", "finance")


def test_rows_without_any_label_are_reported(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x", "label": "a"}\n' * 3)
    reading = Reading(label="annotations.0.label", skip_unlabelled=True)
    with pytest.raises(ConfigError, match=r"all 3 rows lack a label at 'annotations\.0\.label'"):
        class_labels(None, Source(path=path, reading=reading))


def test_multi_label_classes_are_the_labels_of_all_rows(tmp_path):
    rows = source(tmp_path, ["b|a", "", "c|a"], kind="multi_label", separator="|")
    assert class_labels(None, rows) == ("a", "b", "c")
    assert class_labels(("one",), rows) == ("one",)
    with pytest.raises(ConfigError, match="expected 1 or more distinct labels, found 0"):
        class_labels(None, source(tmp_path, [""], kind="multi_label", separator="|"))


def test_a_regression_has_a_single_logit_named_score(tmp_path):
    assert class_labels(None, source(tmp_path, "12", kind="regression")) == ("score",)


def test_labels_of_held_out_rows_are_included(tmp_path):
    part = Part(rows=3, seed=0, held_out=False)
    assert class_labels(None, source(tmp_path, "abcd", part=part)) == ("a", "b", "c", "d")


def test_labels_do_not_depend_on_the_hash_seed(tmp_path):
    path = source(tmp_path, ["pear", "apple", "fig", "lime", "plum"]).path
    code = (
        "from pathlib import Path; from pipework.data.examples import Source;"
        "from pipework.run_folder.read_options import Reading;"
        "from pipework.train.data.labels import class_labels;"
        f"rows = Source(path=Path({str(path)!r}), reading=Reading(text=0, label=1));"
        "print(class_labels(None, rows))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert printed == {"('apple', 'fig', 'lime', 'pear', 'plum')\n"}
