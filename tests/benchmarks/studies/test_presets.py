"""BERT and ALBERT presets are trained for a few steps and stored."""

from pipework.benchmarks.studies.presets import CHARACTERS, main
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.records.training_results import PresetsResult, preset_rows


def test_both_families_of_a_preset_are_measured(tmp_path, capsys):
    out = tmp_path / "presets.json"
    assert main(["--out", str(out), "--presets", "tiny", "--rounds", "2", "--steps", "1"]) == 0
    result = read_stored(out)
    assert isinstance(result, PresetsResult)
    bert, albert = result.presets
    assert (bert.family, albert.family) == ("bert", "albert")
    assert (bert.layers, bert.width) == (albert.layers, albert.width) == (2, 128)
    assert bert.embeddings > 128 * CHARACTERS
    assert albert.parameters < bert.parameters
    assert len(bert.tokens_per_s) == len(albert.tokens_per_s) == 2
    assert min(bert.tokens_per_s + albert.tokens_per_s) > 0
    rows = list(preset_rows(result))
    assert [row[2] for row in rows] == ["BERT", "ALBERT"]
    assert rows[0][-1] == "1.00"
    assert "tokens/s" in capsys.readouterr().out
