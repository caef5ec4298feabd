"""Each table shows the results of its kind."""

from pipework.benchmarks.studies.documents.readme import fill
from pipework.benchmarks.studies.documents.study_tables import TABLES, offline_rows


def test_each_table_uses_the_results_of_its_kind(trained, served, offline):
    results = [trained, served, offline]
    tables = {
        name: fill(f"<!-- table:{name} -->\n<!-- /table:{name} -->", results) for name in TABLES
    }
    assert tables["serving"].count("| headlines |") == len(served.levels)
    assert "| 16 |" in tables["serving"]
    assert tables["offline"].count("| headlines |") == len(offline.offline)
    assert "| tokenizing | 32 | 26,400 |" in tables["offline"]
    assert "THUCNews" not in tables["serving"] + tables["offline"]


def test_the_matrix_names_the_machines_of_all_measurements(filled):
    other = filled.provenance.machine.model_copy(update={"cpu": "Some Xeon"})
    provenance = filled.provenance.model_copy(update={"machine": other})
    update = {"provenance": provenance, "earlier": (filled.provenance,)}
    text = fill("<!-- table:matrix -->\n<!-- /table:matrix -->", [filled.model_copy(update=update)])
    assert "Measured on AMD EPYC, 2 cores, November 2026; Some Xeon, 2 cores" in text


def test_the_offline_table_shows_the_fastest_engine(offline):
    def rows(rate):
        other = offline.offline[3].model_copy(update={"stage": "onnx-int8", "texts_per_s": rate})
        both = offline.model_copy(update={"offline": (*offline.offline, other)})
        return [row[1:4] for row in offline_rows(both)]

    assert rows(519.0) == [row[1:4] for row in offline_rows(offline)]
    assert rows(521.0)[3:] == [("onnx-int8", "1", "521")]
    assert [stage for stage, *_ in rows(521.0)[:3]] == ["tokenizing"] * 3


def test_the_matrix_has_a_row_per_family_and_head_and_lists_failure_reasons(filled):
    text = fill("<!-- table:matrix -->\n<!-- /table:matrix -->", [filled])
    assert "**Tiny**: 3 passed parity, 1 built but not run, 2 failed." in text
    assert "| family | head | onnx fp32 | tensorrt fp16 |" in text
    assert "| bert | gru | 1e-07 · 2e-07 | built |" in text
    assert "| xlnet | gru | 2e-07 · [1] | [2] |" in text
    assert "- [1] cannot\n- [2] too new\n" in text


def test_the_engine_table_ends_with_the_baseline(proven_engines):
    text = fill("<!-- table:engines -->\n<!-- /table:engines -->", [proven_engines])
    change = "-0.25 (-0.35 to -0.15)"
    row = f"| MRPC | onnx-int8-static-packed | 23 | 3.1e-01 | 99.50% | {change} | 2 | 300 | 3.00 |"
    assert row in text
    assert "| MRPC | openvino-bf16-packed | 87 |" in text
    assert "| MRPC | baseline |  |  |  |  |  | 100 | 1 | 12.0 |" in text


def test_the_table_of_cascades_has_a_row_for_each_limit_and_the_refused_limits(cascades):
    text = fill("<!-- table:cascades -->\n<!-- /table:cascades -->", [cascades])
    assert "**THUCNews**: the linear model before onnx-fp32, measured on 10,000 test rows" in text
    assert "proven on 9,000 rows of dev" in text
    assert (
        "| limit | answered first | other label | score change, points | texts/s, 8 clients |"
        in (text)
    )
    rate = "**1,078**, alone 539: 2.00 (1.60 to 2.50)"
    assert f"| 1.0% | 100.0% | 0.50% | +0.40 (-0.10 to +0.90) | {rate} |" in text
    assert "- 0.2% is refused: too few rows" in text
