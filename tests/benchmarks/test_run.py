"""URLs and run folders are measured; invalid targets are reported."""

import pytest

from pipework.benchmarks import run
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.run import bench
from pipework.data.examples import Source
from pipework.errors import InputError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.run_folder.read_options import Reading
from tests.serve.conftest import build_run

QUICK = BenchPlan(concurrencies=(1, 2), duration_s=0.2)


def test_a_url_is_measured_at_each_number_of_clients(serve):
    server = serve(delay_s=0.01)
    result = bench(server.url + "/", QUICK, NullProgress())
    assert [level.concurrency for level in result.levels] == [1, 2]
    assert result.model == "fake"
    assert result.target == server.url
    assert result.offline == ()
    assert len(server.bodies[0]["texts"]) == 1


def test_a_password_in_the_url_is_used_but_not_stored(serve):
    url = serve().url.replace("//", "//me:secret@")
    result = bench(url, QUICK, NullProgress())
    assert "secret" not in result.model_dump_json()
    assert result.levels[0].requests > 0


def test_a_run_folder_is_measured_with_each_stage_and_batch(tmp_path_factory, monkeypatch):
    folder = build_run(tmp_path_factory)
    open_proven = run.open_proven
    opened = []
    monkeypatch.setattr(
        run, "open_proven", lambda *given: opened.append(given[2]) or open_proven(*given)
    )
    manifest = read_manifest(folder)
    (engine,) = manifest.engines
    engines = (engine, engine.model_copy(update={"name": "other"}))
    write_manifest(folder, manifest.model_copy(update={"engines": engines}))
    result = bench(str(folder), QUICK, NullProgress())
    stages = [(level.stage, level.batch) for level in result.offline]
    assert stages == [
        (name, batch) for name in ("tokenizing", "onnx", "other") for batch in (1, 8, 32)
    ]
    assert opened == ["onnx", "other"]
    assert (result.target, result.model, result.levels) == (folder.name, "topics", ())
    tokens = result.workload.mean_tokens
    assert 2 < tokens <= manifest.input.max_length
    for level in result.offline:
        assert level.tokens_per_s == pytest.approx(level.texts_per_s * tokens, rel=1e-3)
    assert str(folder) not in result.model_dump_json()


def test_a_run_folder_is_measured_with_the_given_file_and_batch(tmp_path_factory, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\n")
    source = Source(path=path, reading=Reading(text=0, label=None))
    plan = BenchPlan(source=source, batch=2, duration_s=0.1)
    result = bench(str(build_run(tmp_path_factory)), plan, NullProgress())
    assert {level.batch for level in result.offline} == {2}
    assert (result.workload.source, result.workload.texts) == ("rows.txt", 2)


def test_a_model_of_pairs_is_measured_with_pairs(tmp_path_factory):
    folder = build_run(tmp_path_factory, pair=True)
    assert bench(str(folder), BenchPlan(batch=1, duration_s=0.1), NullProgress()).workload.pair


def test_a_model_of_two_entities_is_measured_with_marked_texts(tmp_path_factory, tmp_path):
    folder = build_run(tmp_path_factory, entities=True)
    result = bench(str(folder), BenchPlan(batch=1, duration_s=0.1), NullProgress())
    assert [level.stage for level in result.offline] == ["tokenizing", "onnx"]
    path = tmp_path / "rows.txt"
    path.write_text("<e1>one</e1> and <e2>two</e2>\nneither\n")
    source = Source(path=path, reading=Reading(text=0, label=None))
    with pytest.raises(InputError, match=r"text \d: expected <e1> once"):
        bench(str(folder), BenchPlan(source=source, batch=1, duration_s=0.1), NullProgress())
