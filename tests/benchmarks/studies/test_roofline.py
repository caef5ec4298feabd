from pipework.benchmarks.studies.records.engine_results import RooflineResult
from pipework.benchmarks.studies.roofline import main
from pipework.run_folder.manifest import read_manifest


def test_every_proven_engine_is_compared_with_its_matmul_graph(exported_run, run_study) -> None:
    words = ("--name", "tiny model", "--seconds", "0.2")
    result = run_study(main, "--run", exported_run, *words)
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


def refused(run, tmp_path, *words) -> bool:
    places = ["--run", str(run), "--name", "tiny", "--out", str(tmp_path / "r.json")]
    return main([*places, *words]) == 2


def test_a_missing_engine_is_reported(exported_run, tmp_path, capsys) -> None:
    assert refused(exported_run, tmp_path, "--engine", "none-such")
    expected = "expected a proven engine to measure (none-such), found onnx-fp32"
    assert expected in capsys.readouterr().err


def test_an_encoder_with_another_architecture_is_rejected(proven, tmp_path, capsys) -> None:
    (proven / "checkpoint" / "config.json").write_text("{}")
    assert refused(proven, tmp_path)
    assert "an encoder with BERT's architecture" in capsys.readouterr().err
