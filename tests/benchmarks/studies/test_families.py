"""What makes the table of families; that each learns is tested in tests/train/model/test_families.py."""

import pytest

from pipework.benchmarks.studies import families
from pipework.benchmarks.studies.families import Family, Rows, main, measure
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.benchmarks.studies.training_results import Fit
from pipework.train.config.model import Head


def test_a_family_is_measured_with_each_head_asked_for():
    fits = measure(Family.DISTILBERT, [Head.CNN, Head.ENTITY])
    assert [(fit.family, fit.head) for fit in fits] == [
        ("distilbert", "cnn"),
        ("distilbert", "entity"),
    ]
    assert all(0 < fit.steps <= families.STEPS for fit in fits)


def test_the_rows_are_of_every_topic_and_the_entities_lie_inside_the_text():
    rows = Rows.of(Family.XLNET)
    assert {example.label for example in rows.examples} == set(rows.task.labels)
    for one in rows.encodings(type_ids=True, marked=True):
        (first, middle), (again, last) = one.entity_spans
        assert first < middle == again < last < len(one)
        assert one.type_ids[-1] == 2  # XLNet's own type for its last token


def test_a_model_whose_states_say_nothing_is_found_out(monkeypatch):
    monkeypatch.setattr(families, "STEPS", 30)
    monkeypatch.setattr(
        "pipework.train.model.classifier.Classifier.states",
        lambda self, ids, mask, types=None: mask[..., None].float().repeat(1, 1, families.WIDTH),  # noqa: ARG005
    )
    (fit,) = measure(Family.BERT, [Head.CNN])
    assert fit.steps is None


@pytest.mark.parametrize(("steps", "code"), [(40, 0), (None, 3)])
def test_the_result_is_stored_and_a_failure_exits_3(tmp_path, monkeypatch, capsys, steps, code):
    monkeypatch.setattr(
        families,
        "measure",
        lambda family, heads: [Fit(family=family, head=head, steps=steps) for head in heads],
    )
    assert main(["--out", str(tmp_path / "f.json")]) == code
    stored = read_stored(tmp_path / "f.json")
    assert len(stored.fits) == len(Family) * len(Head)
    assert ("bert with linear" in capsys.readouterr().err) == (code == 3)
