"""schema.json equals the schema of the record classes and explains their fields."""

import json

from pipework.benchmarks.studies.documents.readme import RESULTS
from pipework.benchmarks.studies.records import stored_results as module
from pipework.benchmarks.studies.records.stored_results import PATH, main, schema


def test_the_file_equals_the_generated_schema():
    assert PATH.read_text(encoding="utf-8") == schema(), (
        "run python -m pipework.benchmarks.studies.records.stored_results"
    )
    assert main(["--check"]) == 0


def test_the_records_of_a_bench_have_descriptions():
    generated = json.loads(schema())["$defs"]
    for name in ("BenchResult", "Level", "Latency", "SloResult", "RateTrial", "Ratio"):
        assert len(generated[name]["description"]) > 20
    assert "latency_ms" in generated["Level"]["properties"]


def test_every_stored_result_has_only_fields_of_the_schema():
    generated = json.loads(schema())
    kinds = generated["discriminator"]["mapping"]
    for path in RESULTS.glob("*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        record = generated["$defs"][kinds[stored["kind"]].rpartition("/")[2]]
        assert set(stored) <= set(record["properties"]), path.name


def test_a_schema_that_differs_is_exit_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "PATH", tmp_path / "schema.json")
    assert main(["--check"]) == 3
    assert "python -m pipework.benchmarks.studies.records.stored_results" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0
