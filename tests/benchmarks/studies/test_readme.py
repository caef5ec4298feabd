"""The README's tables come from stored results and from nowhere else."""

import pytest

from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies import readme
from pipework.benchmarks.studies.offline_table import offline_rows
from pipework.benchmarks.studies.readme import OPEN, ROOT, Table, fill, main, read_all, update
from pipework.errors import CheckFailedError, ConfigError

TEXT = "# A\n\n<!-- table:accuracy -->\nold\n<!-- /table:accuracy -->\n\nafter\n"


def test_a_table_replaces_what_stood_between_its_markers_and_nothing_else(trained):
    new = fill(TEXT, [trained])
    assert new.startswith("# A\n\n<!-- table:accuracy -->\n| data |")
    assert new.endswith("<!-- /table:accuracy -->\n\nafter\n")
    assert "old" not in new
    row = "| THUCNews headlines | accuracy | **91.27** | naive Bayes 88.87, TF-IDF + SVM 90.36 |"
    assert row in new
    assert "Measured on AMD EPYC, 2 cores, November 2026." in new


def test_filling_twice_changes_nothing(trained, served):
    once = fill(TEXT, [trained, served])
    assert fill(once, [trained, served]) == once


def test_each_table_takes_the_results_of_its_kind(trained, served, offline):
    results = [trained, served, offline]
    tables = {
        name: fill(f"<!-- table:{name} -->\n<!-- /table:{name} -->", results) for name in Table
    }
    assert tables[Table.SERVING].count("| headlines |") == len(served.levels)
    assert "| 16 |" in tables[Table.SERVING]
    assert tables[Table.OFFLINE].count("| headlines |") == len(offline.offline)
    assert "| tokenizing | 32 | 26,400 |" in tables[Table.OFFLINE]
    assert "THUCNews" not in tables[Table.SERVING] + tables[Table.OFFLINE]


def test_what_was_made_again_elsewhere_keeps_its_column_and_names_both_machines(filled):
    early, late = filled.cells[0], filled.cells[2]
    again = filled.cells[1].model_copy(update={"engine": "onnx-int8-static"})
    other = filled.provenance.machine.model_copy(update={"cpu": "Some Xeon"})
    provenance = filled.provenance.model_copy(update={"machine": other})
    made = {
        "cells": (early, late, again),
        "provenance": provenance,
        "earlier": (filled.provenance,),
    }
    text = fill("<!-- table:matrix -->\n<!-- /table:matrix -->", [filled.model_copy(update=made)])
    assert "| family | head | onnx fp32 | onnx int8 static | tensorrt fp16 |" in text
    assert "Measured on AMD EPYC, 2 cores, November 2026; Some Xeon, 2 cores" in text


def test_of_the_engines_in_one_process_the_one_that_answers_most_is_told(offline):
    def rows(rate):
        other = offline.offline[3].model_copy(update={"stage": "onnx-int8", "texts_per_s": rate})
        both = offline.model_copy(update={"offline": (*offline.offline, other)})
        return [row[1:4] for row in offline_rows(both)]

    assert rows(519.0) == [row[1:4] for row in offline_rows(offline)]
    assert rows(521.0)[3:] == [("onnx-int8", "1", "521")]
    assert [stage for stage, *_ in rows(521.0)[:3]] == ["tokenizing"] * 3


def test_the_table_of_families_has_a_line_a_family_and_a_column_a_head(fitted):
    text = fill("<!-- table:families -->\n<!-- /table:families -->", [fitted])
    assert "| family | linear | cnn |" in text
    assert "| bert | 70 | 30 |" in text
    assert "| xlnet | no | - |" in text


def test_the_matrix_has_a_line_a_family_and_head_and_says_why_not(filled):
    text = fill("<!-- table:matrix -->\n<!-- /table:matrix -->", [filled])
    assert "**Tiny**: 3 proven, 1 built and not run, 2 neither." in text
    assert "| family | head | onnx fp32 | tensorrt fp16 |" in text
    assert "| bert | gru | 1e-07 · 2e-07 | built · - |" in text
    assert "| xlnet | gru | 2e-07 · [1] | [2] · - |" in text
    assert "- [1] cannot\n- [2] too new\n" in text


def test_the_table_of_engines_ends_with_what_is_put_together_by_hand(proven_engines):
    text = fill("<!-- table:engines -->\n<!-- /table:engines -->", [proven_engines])
    change = "-0.25 (-0.35 to -0.15)"
    row = f"| MRPC | onnx-int8-static-packed | 23 | 3.1e-01 | 99.50% | {change} | 2 | 300 | 3.00 |"
    assert row in text
    assert "| MRPC | openvino-bf16-packed | 87 |" in text
    assert "| MRPC | by hand |  |  |  |  |  | 100 | 1 | 12.0 |" in text


def test_the_peers_tables_say_who_is_faster_and_where_time_goes(compared):
    training = fill("<!-- table:peers_training -->\n<!-- /table:peers_training -->", [compared])
    assert "| MRPC | 3,668 | pipework | 2 | 63.0 |  | accuracy 81.00 ± 1.41 | 1,200 |" in training
    assert "| Trainer, best | 2 | 47.0 | **1.35** times |" in training
    phases = fill("<!-- table:peers_phases -->\n<!-- /table:peers_phases -->", [compared])
    assert "| data | forward | backward | other |" in phases
    assert "| MRPC | 30.0% | 45.0% | 25.0% |" in phases


def test_without_results_a_table_says_so():
    assert "No results yet." in fill(TEXT, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- table:speed -->\n<!-- /table:speed -->", "there is no such table"),
        ("<!-- table:accuracy -->\nrest", "has no <!-- /table:accuracy -->"),
        (
            (
                "<!-- table:serving -->\n<!-- table:accuracy -->\n<!-- /table:accuracy -->\n"
                "<!-- /table:serving -->"
            ),
            "has no <!-- /table:serving -->",
        ),
    ],
)
def test_wrong_markers_are_named(text, said):
    with pytest.raises(ConfigError, match=said):
        fill(text, [])


def test_a_pipe_in_a_name_does_not_split_the_cell(trained):
    assert "| a\\|b |" in fill(TEXT, [trained.model_copy(update={"dataset": "a|b"})])


def test_check_changes_nothing_and_exits_3_when_a_table_differs(
    trained, tmp_path, monkeypatch, capsys
):
    results, path = tmp_path / "results", tmp_path / "README.md"
    results.mkdir()
    write_result(results / "one.json", trained)
    path.write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "RESULTS", results)
    assert main(["--check"]) == 3
    assert path.read_text(encoding="utf-8") == TEXT
    assert "python -m pipework.benchmarks.studies.readme" in capsys.readouterr().err
    assert main([]) == 0
    assert "91.27" in path.read_text(encoding="utf-8")
    assert main(["--check"]) == 0


def test_a_missing_readme_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        update(tmp_path / "README.md", [], check=True)


def test_the_stored_results_of_this_project_are_all_readable():
    read_all(readme.RESULTS)


def test_the_check_raises_what_exits_3(trained, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(CheckFailedError):
        update(path, [trained], check=True)


def test_the_readme_shows_every_table():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(OPEN.findall(text)) == set(Table)
