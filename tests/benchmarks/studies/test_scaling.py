"""The replicas follow the formula of Kubernetes, and a short recording is stored and drawn."""

import shutil

import pytest

from pipework.benchmarks.studies.records.experiment_results import (
    ReplicaLimits,
    ScalingSample,
    hpa_replicas,
    scaling_rows,
)
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.result_page import page
from pipework.benchmarks.studies.scaling import main, scaled_object

LIMITS = ReplicaLimits(target=0.25, least=1, most=10)


def replicas(*values, every_s=15.0, limits=LIMITS):
    """Return the replicas for values of the query, by time of decision."""
    samples = [
        ScalingSample(seconds=index * every_s, clients=0, value=value)
        for index, value in enumerate(values)
    ]
    return hpa_replicas(samples, limits)


def test_the_replicas_are_the_value_by_the_target_rounded_up():
    assert replicas(0.2, 0.3, 0.6, 1.0) == (1, 2, 3, 4)


def test_the_replicas_rise_by_four_or_double_and_stay_within_the_limits():
    assert replicas(9.0, 9.0, 9.0, limits=LIMITS.model_copy(update={"most": 12})) == (5, 10, 12)
    assert replicas(0.0, limits=LIMITS.model_copy(update={"least": 2})) == (2,)


def test_nothing_changes_within_the_tolerance():
    assert replicas(0.27) == (1,)
    assert replicas(0.28) == (2,)
    assert replicas(1.0, 1.09, 1.11) == (4, 4, 5)


def test_nothing_changes_between_two_decisions():
    assert replicas(0.0, 1.0, 1.0, 1.0, every_s=5.0) == (1, 1, 1, 4)


def test_the_replicas_fall_to_the_highest_recommendation_of_the_last_five_minutes():
    found = replicas(1.0, 0.5, *[0.0] * 25)
    assert found[:21] == (4,) * 21  # the recommendation at 0 s counts until 300 s
    assert found[21:23] == (2, 1)


def test_a_short_recording_is_stored_and_drawn(exported_run, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is absent: apt-get install prometheus")
    path = tmp_path / "scaling.json"
    times = ("--before-s", "3", "--load-s", "3", "--after-s", "5")
    assert main(["--run", str(exported_run), "--clients", "32", *times, "--out", str(path)]) == 0
    result = read_stored(path)
    assert result.limits.target == float(scaled_object()["triggers"][0]["metadata"]["threshold"])
    assert [row[1] for row in scaling_rows(result)] == ["0", "32", "0"]
    loaded = [sample.value for sample in result.samples if sample.clients]
    assert max(loaded) > 0 == result.samples[0].value
    assert page(result).count("<svg") == 3


def test_an_absent_prometheus_is_reported(exported_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipework.benchmarks.studies.scaling.shutil.which", lambda _: None)
    path = tmp_path / "scaling.json"
    assert main(["--run", str(exported_run), "--out", str(path)]) == 2
    assert "the program prometheus is absent" in capsys.readouterr().err
    assert not path.exists()
