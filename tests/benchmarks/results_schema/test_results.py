"""Results are written and read without loss, and anything else is rejected."""

import json

import pytest
from pydantic import ValidationError

from pipework.benchmarks.results_schema.results import SloLimit, Statistic, write_result
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.errors import DataError


@pytest.mark.parametrize("kind", ["served", "loaded", "offline", "trained", "filled", "comparison"])
def test_a_written_result_is_read_unchanged(kind, request, tmp_path):
    result = request.getfixturevalue(kind)
    write_result(tmp_path / "r.json", result)
    assert read_stored(tmp_path / "r.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hostname": "x"}, "hostname: Extra inputs"),
        ({"schema_version": 2}, "schema_version: Input should be 1"),
        ({"kind": "other"}, "not a result of schema 1"),
    ],
)
def test_a_schema_violation_is_reported_with_its_path(served, tmp_path, change, message):
    content = json.loads(served.model_dump_json()) | change
    path = tmp_path / "r.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"r\.json is not a result") as caught:
        read_stored(path)
    assert message in str(caught.value)


def test_a_missing_result_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"none\.json cannot be read: No such file"):
        read_stored(tmp_path / "none.json")


def test_an_interrupted_write_leaves_the_old_result(served, trained, tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_result(path, served)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_result(path, trained)
    assert read_stored(path) == served


def test_a_statistic_is_named_as_on_the_command_line():
    assert SloLimit.model_validate({"statistic": "p99.9", "most_ms": 1}).statistic is Statistic.P999
    with pytest.raises(ValidationError, match="statistic"):
        SloLimit.model_validate({"statistic": "p98", "most_ms": 1})
