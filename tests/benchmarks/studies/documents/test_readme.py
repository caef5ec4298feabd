"""The tables of the documents are generated from stored results."""

import pytest

from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.documents import readme
from pipework.benchmarks.studies.documents.readme import (
    DOCUMENTS,
    OPEN,
    ROOT,
    fill,
    generators,
    main,
    read_all,
    update,
)
from pipework.benchmarks.studies.records.stored_results import schema
from pipework.errors import CheckFailedError, ConfigError


def filled(*results):
    return lambda text: fill(text, results)


TEXT = "# A\n\n<!-- table:accuracy -->\nold\n<!-- /table:accuracy -->\n\nafter\n"


def test_fill_replaces_only_the_text_between_the_markers(trained):
    new = fill(TEXT, [trained])
    assert new.startswith("# A\n\n<!-- table:accuracy -->\n| data |")
    assert new.endswith("<!-- /table:accuracy -->\n\nafter\n")
    assert "old" not in new
    row = "| THUCNews headlines | accuracy | **91.27** | naive Bayes 88.87, TF-IDF + SVM 90.36 |"
    assert row in new
    assert "Measured on AMD EPYC, 2 cores, November 2026." in new


def test_fill_is_idempotent(trained, served):
    once = fill(TEXT, [trained, served])
    assert fill(once, [trained, served]) == once


def test_a_table_without_results_states_it():
    assert "No results yet." in fill(TEXT, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table:speed -->\n<!-- /table:speed -->", "unknown table table:speed"),
        ("<!-- table:accuracy -->\nrest", "has no <!-- /table:accuracy -->"),
        ("<!-- settings:nothing -->\n<!-- /settings:nothing -->", "unknown table settings:nothing"),
        ("<!-- settings:task -->\n", "has no <!-- /settings:task -->"),
        (
            (
                "<!-- table:serving -->\n<!-- table:accuracy -->\n<!-- /table:accuracy -->\n"
                "<!-- /table:serving -->"
            ),
            "has no <!-- /table:serving -->",
        ),
    ],
)
def test_wrong_markers_are_reported(text, message):
    with pytest.raises(ConfigError, match=message):
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
    other = tmp_path / "RESULTS.md"
    other.write_text("no table\n", encoding="utf-8")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "RESULTS", results)
    monkeypatch.setattr(readme, "DOCUMENTS", (path.name, other.name))
    monkeypatch.setattr(readme, "SCHEMA", "schema.json")
    monkeypatch.setattr(readme, "PLOT", "plot.svg")
    (tmp_path / "schema.json").write_text("{}")
    (tmp_path / "plot.svg").write_text("")
    assert main(["--check"]) == 3
    assert path.read_text(encoding="utf-8") == TEXT
    printed = capsys.readouterr().err
    assert "/README.md differ from their sources" in printed
    assert "python -P -m pipework.benchmarks.studies.documents.readme" in printed
    assert main([]) == 0
    assert (tmp_path / "schema.json").read_text() == schema()
    assert "91.27" in path.read_text(encoding="utf-8")
    assert other.read_text(encoding="utf-8") == "no table\n"
    assert main(["--check"]) == 0


def test_the_check_covers_every_document(trained, tmp_path):
    paths = [tmp_path / name for name in ("README.md", "RESULTS.md")]
    for path in paths:
        path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(CheckFailedError, match=r"README\.md, .*RESULTS\.md differ"):
        update(paths, filled(trained), check=True)
    update(paths, filled(trained), check=False)
    assert all("91.27" in path.read_text(encoding="utf-8") for path in paths)
    update(paths, filled(trained), check=True)


def test_wrong_markers_in_one_document_change_no_document(trained, tmp_path):
    good, bad = tmp_path / "README.md", tmp_path / "RESULTS.md"
    good.write_text(TEXT, encoding="utf-8")
    bad.write_text("<!-- table:speed -->\n<!-- /table:speed -->", encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown table table:speed"):
        update([good, bad], filled(trained), check=False)
    assert good.read_text(encoding="utf-8") == TEXT


def test_a_missing_document_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        update([tmp_path / "README.md"], filled(), check=True)


def test_every_table_is_in_a_document():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    assert {name for text in texts for name in OPEN.findall(text)} == set(generators([]))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_hold_the_generated_tables(name):
    results = read_all(readme.RESULTS)
    update([ROOT / name], lambda text: fill(text, results), check=True)
