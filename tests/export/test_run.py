import pytest

from pipework.errors import ConfigError, DataError, RunFolderError
from pipework.export.build import Built, build
from pipework.export.config import ExportSettings
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.run import export
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines import open_proven

QUICK = ExportSettings(speed_s=0.1, dev_rows=20)


def engine_files(run):
    return sorted(path.name for path in (run / "engines").rglob("*") if path.is_file())


def test_the_record_holds_what_lies_on_disk(exported_run):
    (engine,) = read_manifest(exported_run).engines
    verify_files(exported_run, engine.files)
    assert engine_files(exported_run) == ["model.onnx", "rows.npz"]
    assert [file.path.rpartition("/")[2] for file in engine.files] == ["model.onnx", "rows.npz"]
    assert engine.built_with.keys() >= {"torch", "transformers", "onnx", "exporter"}


def building(convert):
    """Build with another arrow from checkpoint to graph."""

    def build(_variant, subject, folder, _progress):
        convert(subject.run, subject.manifest, folder / "model.onnx")
        return Built(built_with={})

    return build


def test_a_second_export_replaces_the_first_and_leaves_one_file(proven):
    def other(run, manifest, path):
        checkpoint_to_onnx(run, manifest, path)
        with path.open("ab") as stream:  # a field that no reader knows: other bytes, same graph
            stream.write(b"\xf2\x3f\x01x")

    (before,) = read_manifest(proven).engines
    export(proven, Silent(), building=building(other))
    (after,) = read_manifest(proven).engines
    assert after.files[0] != before.files[0]
    assert engine_files(proven) == ["model.onnx", "rows.npz"]
    open_proven(proven, read_manifest(proven)).close()


def test_an_interrupted_export_keeps_the_engine_that_was_there(proven):
    def interrupted(_run, _manifest, path):
        path.write_bytes(b"half a graph")
        raise KeyboardInterrupt

    manifest, files = read_manifest(proven), engine_files(proven)
    with pytest.raises(KeyboardInterrupt):
        export(proven, Silent(), building=building(interrupted))
    assert (read_manifest(proven), engine_files(proven)) == (manifest, files)


def test_what_a_killed_export_left_is_told_and_removed(run, noting):
    for name in ("partial", "0123456789ab"):
        folder = run / "engines" / "onnx-fp32" / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"half a graph, or one that is not recorded")
    export(run, noting)
    left = [line for line in noting.lines if "left from an unfinished export" in line]
    assert len(left) == 2
    assert engine_files(run) == ["model.onnx", "rows.npz"]


@pytest.mark.parametrize("name", ["checkpoint/model.safetensors", "tokenizer.json"])
def test_a_changed_run_folder_is_refused(run, name):
    with (run / name).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=f"{name} changed"):
        export(run, Silent())


def with_dev(run, **changes):
    manifest = read_manifest(run)
    dev = manifest.data.splits["dev"].model_copy(update=changes)
    data = manifest.data.model_copy(update={"splits": {**manifest.data.splits, "dev": dev}})
    write_manifest(run, manifest.model_copy(update={"data": data}))


def test_a_dev_file_that_went_away_or_changed_is_named(run):
    with_dev(run, path=str(run / "gone.tsv"))
    with pytest.raises(DataError, match=r"gone\.tsv is missing: the dev file"):
        export(run, Silent())
    (run / "gone.tsv").write_text("text\tlabel\nother\tfood\n")
    with pytest.raises(DataError, match=r"gone\.tsv is no longer the dev file"):
        export(run, Silent())


def test_two_exports_of_one_run_do_not_meet(run):
    def while_another_exports(run, manifest, path):
        with pytest.raises(RunFolderError, match="is being written by another"):
            export(run, Silent())
        checkpoint_to_onnx(run, manifest, path)

    export(run, Silent(), building=building(while_another_exports))
    assert len(read_manifest(run).engines) == 1


def test_a_stray_file_under_engines_is_no_obstacle(proven):
    (proven / "engines" / ".DS_Store").write_text("x")
    (proven / "engines" / "onnx-fp32" / "deeper").mkdir()
    export(proven, Silent())
    assert engine_files(proven) == ["model.onnx", "rows.npz"]


def labelled(*formats):
    return [
        Variant(format=format_, precision=Precision.FP32, layout=Layout.PADDED)
        for format_ in formats
    ]


def test_the_same_engine_built_again_leaves_the_recorded_one_where_it_is(proven):
    (before,) = read_manifest(proven).engines

    def interrupted(variant, subject, folder, progress):
        build(variant, subject, folder, progress)
        raise KeyboardInterrupt

    same_rows = ExportSettings(speed_s=0)
    export(proven, Silent(), settings=same_rows)
    (after,) = read_manifest(proven).engines
    assert after.files == before.files
    inode = (proven / before.files[0].path).stat().st_ino
    with pytest.raises(KeyboardInterrupt):
        export(proven, Silent(), settings=same_rows, building=interrupted)
    assert (proven / before.files[0].path).stat().st_ino == inode
    verify_files(proven, read_manifest(proven).engines[0].files)


@pytest.mark.parametrize("error", [ConfigError("no such layer"), RuntimeError("out of workspace")])
def test_of_several_engines_one_that_cannot_be_built_stops_none(run, error, noting):
    def one_fails(variant, subject, folder, progress):
        if variant.format is EngineFormat.OPENVINO:
            raise error
        return build(variant, subject, folder, progress)

    variants = labelled(EngineFormat.OPENVINO, EngineFormat.ONNX)
    records = export(run, noting, variants, settings=QUICK, building=one_fails)
    assert [record.name for record in records] == ["onnx-fp32"]
    assert records[0].speed is not None
    assert f"refused: openvino-fp32: {error}" in noting.lines
    assert "1 of 2 refused: openvino-fp32" in noting.lines


def test_a_broken_engine_of_before_is_not_measured_and_stops_nothing(proven, noting):
    (before,) = read_manifest(proven).engines
    (proven / before.files[0].path).write_bytes(b"broken")
    export(proven, noting, labelled(EngineFormat.OPENVINO), settings=QUICK)
    assert read_manifest(proven).engines[0].name == "openvino-fp32"
    assert any(line.startswith("not measured: onnx-fp32: ") for line in noting.lines)


def test_an_engine_that_was_measured_elsewhere_stands_behind(proven):
    manifest = read_manifest(proven)
    (engine,) = manifest.engines
    fast = engine.speed.model_copy(update={"texts_per_s": 1e9, "processor": "another"})
    there = engine.parity.model_copy(update={"processor": "another"})
    elsewhere = engine.model_copy(update={"speed": fast, "parity": there})
    write_manifest(proven, manifest.model_copy(update={"engines": (elsewhere,)}))
    export(proven, Silent(), labelled(EngineFormat.OPENVINO), settings=QUICK)
    names = [one.name for one in read_manifest(proven).engines]
    assert names == ["openvino-fp32", "onnx-fp32"]
