"""A stored cascade has the share, the labels and the rates of its servers at each limit."""

import shutil

import pytest

from pipework.benchmarks.studies import cascades
from pipework.data.splits import split_source
from pipework.errors import DataError
from pipework.export.inference import predict_run
from pipework.run_folder.manifest import read_manifest
from tests.export.cascades import cascaded

OPTIONS = ("--name", "the sample", "--seconds", 0.5)


def test_each_limit_is_measured_on_a_split_that_has_not_proven_it(
    exported_run, run_study, monkeypatch, tmp_path
):
    monkeypatch.setattr(cascades, "LIMITS", (0.001, 0.3))
    monkeypatch.setattr(cascades, "CLIENTS", (2,))
    before = read_manifest(exported_run)
    result = run_study(cascades.main, "--run", exported_run, *OPTIONS)
    assert read_manifest(exported_run) == before
    (point,) = result.points
    assert "at least 3,523 rows are needed" in result.refused["0.1%"]
    run = tmp_path / "again"
    shutil.copytree(exported_run, run)
    record = cascaded(run, max_difference=0.3)
    manifest = read_manifest(run)
    rows = [*split_source(run, manifest, "test").rows()]
    both, alone = (
        [prediction.label for _, prediction in predict_run(run, rows, name)]
        for name in (None, record.engine)
    )
    right, engine = (
        100 * sum(label == row.label for label, row in zip(labels, rows, strict=True)) / len(rows)
        for labels in (both, alone)
    )
    differing = sum(x != y for x, y in zip(both, alone, strict=True))
    assert point.differing == pytest.approx(differing / len(rows))
    assert point.differing < point.answered < 1
    assert result.score == pytest.approx(engine)
    assert point.gain[0] == pytest.approx(right - engine)
    assert (result.proof_rows, result.source, result.rows) == (408, "dev", len(rows))
    (rate,) = point.rates
    assert rate.before > 0
    assert rate.ratio == pytest.approx(rate.after / rate.before, rel=1e-4)
    assert "2 clients" in result.head()[-1]


def test_a_run_without_a_limit_that_holds_has_no_result(exported_run, run_study, monkeypatch):
    monkeypatch.setattr(cascades, "LIMITS", (0.0001, 0.001))
    with pytest.raises(DataError, match="cannot be read"):
        run_study(cascades.main, "--run", exported_run, *OPTIONS, code=3)
