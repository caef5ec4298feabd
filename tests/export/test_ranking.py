"""Engines whose speeds may be equal: the more precise is first, and none is called the fastest."""

import pytest

from pipework.export import ranking
from pipework.export.config import ExportSettings
from pipework.export.ranking import by_speed, fastest
from pipework.export.run import export
from pipework.run_folder.engine_record import Precision
from pipework.run_folder.manifest import read_manifest, write_manifest


@pytest.fixture
def engine(exported_run):
    (record,) = read_manifest(exported_run).engines

    def make(precision, texts_per_s, variation):
        speed = {"texts_per_s": texts_per_s, "variation": variation}
        changes = {"name": f"onnx-{precision}", "precision": Precision(precision)}
        return record.model_copy(update={**changes, "speed": record.speed.model_copy(update=speed)})

    return make


def test_of_equally_fast_engines_the_most_precise_is_first(engine):
    engines = [engine("int8", 100, 0.1), engine("bf16", 95, 0.1), engine("fp32", 80, 0.1)]
    assert [one.name for one in fastest(engines)] == ["onnx-int8", "onnx-bf16"]
    assert [one.name for one in by_speed(engines)] == ["onnx-bf16", "onnx-int8", "onnx-fp32"]
    steady = [engine("int8", 100, 0.02), engine("bf16", 95, 0.02)]
    assert [one.name for one in fastest(steady)] == ["onnx-int8"]
    assert by_speed(steady) == steady


def test_an_export_names_no_fastest_engine_if_intervals_overlap(
    proven, noting, engine, monkeypatch
):
    slower, faster = engine("fp32", 95, 0.1), engine("int8", 100, 0.1)
    write_manifest(proven, read_manifest(proven).model_copy(update={"engines": (faster, slower)}))
    speeds = {one.name: one.speed for one in (slower, faster)}
    monkeypatch.setattr(ranking, "measure", lambda *_: speeds)
    settings = ExportSettings(rebuild=False)
    export(proven, noting, settings=settings)
    assert [one.name for one in read_manifest(proven).engines] == ["onnx-fp32", "onnx-int8"]
    assert (
        "no fastest engine: the speeds of onnx-int8, onnx-fp32 may be equal; the safest is first"
        in (noting.lines)
    )
