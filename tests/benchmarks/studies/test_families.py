"""The families study; that each family learns is tested in tests/train/model/test_families.py."""

import pytest

from pipework.benchmarks.studies import families
from pipework.benchmarks.studies.families import EncoderFamily, SampleRows, main, measure_family
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.records.training_results import Fit
from pipework.train.config.model import Head


def test_a_family_is_measured_with_each_head():
    fits = measure_family(EncoderFamily.DISTILBERT, [Head.CNN, Head.ENTITY])
    assert [(fit.family, fit.head) for fit in fits] == [
        ("distilbert", "cnn"),
        ("distilbert", "entity"),
    ]
    assert all(0 < fit.steps <= families.STEPS for fit in fits)


def test_the_rows_cover_every_topic_and_entities_are_inside_the_text():
    rows = SampleRows.of(EncoderFamily.XLNET)
    assert {example.label for example in rows.examples} == set(rows.task.labels)
    for encoding in rows.encodings(type_ids=True, marked=True):
        (first, middle), (again, last) = encoding.entity_spans
        assert first < middle == again < last < len(encoding)
        assert encoding.type_ids[-1] == 2  # XLNet's own type for its last token


def test_a_model_with_constant_states_does_not_fit(monkeypatch):
    monkeypatch.setattr(families, "STEPS", 30)
    monkeypatch.setattr(
        "pipework.train.model.classifier.Classifier.states",
        lambda self, ids, mask, types=None: mask[..., None].float().repeat(1, 1, families.WIDTH),  # noqa: ARG005
    )
    (fit,) = measure_family(EncoderFamily.BERT, [Head.CNN])
    assert fit.steps is None


@pytest.mark.parametrize(("steps", "code"), [(40, 0), (None, 3)])
def test_the_result_is_stored_and_a_failure_exits_with_code_3(
    tmp_path, monkeypatch, capsys, steps, code
):
    monkeypatch.setattr(
        families,
        "measure_family",
        lambda family, heads: [Fit(family=family, head=head, steps=steps) for head in heads],
    )
    assert main(["--out", str(tmp_path / "f.json")]) == code
    stored = read_stored(tmp_path / "f.json")
    assert len(stored.fits) == len(EncoderFamily) * len(Head)
    assert ("bert with linear" in capsys.readouterr().err) == (code == 3)
