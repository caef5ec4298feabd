from pathlib import Path

import pytest

from pipework.benchmarks.studies.roofline import main, roofline
from pipework.benchmarks.studies.roofline_results import RooflineResult
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.errors import ConfigError
from pipework.progress import Silent
from pipework.run_folder.manifest import read_manifest


def test_every_proven_engine_is_set_beside_its_products(exported_run: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "roofline.json", tmp_path / "roofline.html"
    words = [str(exported_run), "tiny", "--seconds", "0.2", "--out", str(out)]
    assert main([*words, "--html", str(page)]) == 0
    result = read_stored(out)
    assert isinstance(result, RooflineResult)
    proven = {one.name for one in read_manifest(exported_run).engines if one.proven}
    assert {one.engine for one in result.engines} == proven
    for one in result.engines:
        assert 0 < one.share < 1
        assert one.roof_gflops > 0
        assert one.flop_per_byte > 1
        assert result.attainable(one) > 0
    assert {one.roof for one in result.engines} == {one.name for one in result.roofs}
    assert result.bandwidth_gb_s > 0
    assert page.read_text().count("<svg") == 1


def test_the_stored_command_repeats_the_run(exported_run: Path) -> None:
    name = next(one.name for one in read_manifest(exported_run).engines if one.proven)
    result = roofline(exported_run, "tiny model", [name], 0.1, Silent())
    assert result.command == (
        *("python", "-m", "pipework.benchmarks.studies.roofline", "RUN", "tiny model"),
        *("--engine", name, "--seconds", "0.1", "--out", "FILE"),
    )


def test_an_engine_that_is_not_there_is_named(exported_run: Path) -> None:
    with pytest.raises(ConfigError, match="expected a proven engine to measure"):
        roofline(exported_run, "tiny", ["none-such"], 0.1, Silent())


def test_an_encoder_of_another_kind_is_refused(proven: Path) -> None:
    (proven / "checkpoint" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="an encoder of BERT's kind"):
        roofline(proven, "tiny", [], 0.1, Silent())
