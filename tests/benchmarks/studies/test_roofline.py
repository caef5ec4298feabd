from pathlib import Path

import pytest

from pipework.benchmarks.studies.records.engine_results import RooflineResult
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.roofline import RooflinePlan, main, roofline
from pipework.errors import ConfigError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest


def test_every_proven_engine_is_compared_with_its_matmul_graph(
    exported_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "roofline.json"
    words = ["--run", str(exported_run), "--name", "tiny model", "--seconds", "0.2"]
    assert main([*words, "--out", str(out)]) == 0
    result = read_stored(out)
    assert result.command == (
        *("python", "-m", "pipework.benchmarks.studies.roofline", "--run", "RUN"),
        *("--name", "tiny model", "--out", "OUT", "--seconds", "0.2"),
    )
    assert isinstance(result, RooflineResult)
    proven = {engine.name for engine in read_manifest(exported_run).engines if engine.proven}
    assert {engine.engine for engine in result.engines} == proven
    for engine in result.engines:
        assert 0 < engine.share < 1
        assert engine.roof_gflops > 0
        assert engine.flop_per_byte > 1
        assert result.attainable(engine) > 0
    assert {engine.roof for engine in result.engines} == {roof.name for roof in result.roofs}
    assert result.bandwidth_gb_s > 0


def plan(run: Path, *engines: str) -> RooflinePlan:
    return RooflinePlan(run=run, name="tiny", engines=engines, seconds=0.1)


def test_a_missing_engine_is_reported(exported_run: Path) -> None:
    with pytest.raises(ConfigError, match="expected a proven engine to measure"):
        roofline(plan(exported_run, "none-such"), (), NullProgress())


def test_an_encoder_with_another_architecture_is_rejected(proven: Path) -> None:
    (proven / "checkpoint" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="an encoder with BERT's architecture"):
        roofline(plan(proven), (), NullProgress())
