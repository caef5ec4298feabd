"""Tables in Markdown, with the machines of their results."""

from pipework.benchmarks.studies.documents.study_tables import machines, markdown
from pipework.benchmarks.studies.records.training_results import plus_minus


def test_a_table_has_a_head_a_rule_and_escaped_cells():
    assert markdown(("a", "b"), [("1|2", "3")]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"


def test_each_machine_is_named_once(trained, served):
    origins = [trained.provenance, served.provenance]
    assert machines(origins) == "\n\nMeasured on AMD EPYC, 2 cores, November 2026."
    assert machines([]) == "\n\nNo results yet."


def test_the_standard_deviation_needs_two_values():
    assert plus_minus([1.0, 3.0]) == " ± 1.41"
    assert plus_minus([1.0]) == ""
