"""schema.json equals the schema of the record classes and explains their fields."""

import json

from pipework.benchmarks.studies.documents.readme import COMMAND, RESULTS, ROOT, SCHEMA
from pipework.benchmarks.studies.records.stored_results import schema


def test_the_file_equals_the_generated_schema():
    assert (ROOT / SCHEMA).read_text(encoding="utf-8") == schema(), COMMAND


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
