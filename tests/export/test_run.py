import errno
import os
import shutil
from pathlib import Path

import pytest

from pipework.commands import models
from pipework.errors import ChangedFileError, CheckFailedError, ConfigError, RunFolderError
from pipework.export import checked_engine, ranking
from pipework.export.build import BuildResult, build
from pipework.export.config import ExportSettings
from pipework.export.convert.checkpoint2onnx import checkpoint_to_onnx
from pipework.export.plan import AUTO
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import ONNX_FP32, export
from pipework.export.speed import measure
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineBuild, Precision
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines import open_proven
from pipework.tasks.change import PredictionChange
from tests.commands import pipe
from tests.export.conftest import ENGINES
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=20)
MEASURED = ExportSettings(speed_s=0.1, dev_rows=20)


def engine_files(run):
    return sorted(path.name for path in (run / "engines").rglob("*") if path.is_file())


def test_the_record_matches_the_files_on_disk(exported_run):
    (engine,) = read_manifest(exported_run).engines
    verify_files(exported_run, engine.files)
    assert engine_files(exported_run) == ["model.onnx", "rows.npz"]
    assert [file.path.rpartition("/")[2] for file in engine.files] == ["model.onnx", "rows.npz"]
    assert engine.built.built_with.keys() >= {"torch", "transformers", "onnx", "exporter"}


def test_one_export_command_reads_the_manifest_once(run, monkeypatch):
    opened, modes = Path.open, []

    def counting(path, mode="r", *arguments, **options):
        if path == run / "manifest.json":
            modes.append(mode)
        return opened(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", counting)
    models.export(run, "onnx", overrides=["speed_s=0", "dev_rows=20"])
    assert modes == ["rb"]
    (engine,) = read_manifest(run).engines
    assert engine.name == "onnx-fp32"


def builder(convert):
    """Return an engine builder with another checkpoint-to-ONNX converter."""

    def build(_variant, run_rows, folder, *_):
        convert(run_rows.run, run_rows.manifest, folder / "model.onnx")
        return BuildResult(built=EngineBuild(opset=17, built_with={}))

    return build


def test_a_second_export_replaces_the_first(proven):
    def other(run, manifest, path):
        checkpoint_to_onnx(run, manifest, path)
        with path.open("ab") as stream:  # an unknown protobuf field: other bytes, same graph
            stream.write(b"\xf2\x3f\x01x")

    (before,) = read_manifest(proven).engines
    export(proven, NullProgress(), settings=QUICK, builder=builder(other))
    (after,) = read_manifest(proven).engines
    assert after.files[0] != before.files[0]
    assert engine_files(proven) == ["model.onnx", "rows.npz"]
    open_proven(proven, read_manifest(proven)).close()


def test_an_interrupted_export_keeps_the_existing_engine(proven):
    def interrupted(_run, _manifest, path):
        path.write_bytes(b"half a graph")
        raise KeyboardInterrupt

    manifest, files = read_manifest(proven), engine_files(proven)
    with pytest.raises(KeyboardInterrupt):
        export(proven, NullProgress(), builder=builder(interrupted))
    assert (read_manifest(proven), engine_files(proven)) == (manifest, files)


def test_files_of_a_killed_export_are_reported_and_removed(run, noting):
    for name in ("partial", "0123456789ab"):
        folder = run / "engines" / "onnx-fp32" / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"half a graph, or one that is not recorded")
    export(run, noting, settings=QUICK)
    left = [line for line in noting.lines if "left from an unfinished export" in line]
    assert len(left) == 2
    assert engine_files(run) == ["model.onnx", "rows.npz"]


def test_the_files_of_an_engine_are_on_the_disk_before_the_manifest_names_them(run, monkeypatch):
    named = []

    def sync(path):
        named.append(path)
        assert read_manifest(run).engines == ()

    monkeypatch.setattr(checked_engine, "sync", sync)
    export(run, NullProgress(), settings=QUICK)
    (final,) = (run / "engines" / "onnx-fp32").iterdir()
    assert set(named) == {*final.iterdir(), final, final.parent, run / "engines", run}


@pytest.mark.parametrize("damage", ["changed", "missing"])
@pytest.mark.parametrize("file", [0, 1])
def test_a_damaged_engine_that_is_exported_again_is_replaced(proven, damage, file):
    manifest = read_manifest(proven)
    (engine,) = manifest.engines
    path = proven / engine.files[file].path
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    export(proven, NullProgress(), settings=ExportSettings(speed_s=0))
    (again,) = read_manifest(proven).engines
    verify_files(proven, again.files)
    assert again.files == engine.files  # the same checkpoint and rows
    with open_proven(proven, read_manifest(proven)):
        pass


def test_a_second_concurrent_export_of_a_run_is_rejected(run):
    def while_another_exports(run, manifest, path):
        with pytest.raises(RunFolderError, match="is being written by another"):
            export(run, NullProgress())
        checkpoint_to_onnx(run, manifest, path)

    export(run, NullProgress(), settings=QUICK, builder=builder(while_another_exports))
    assert len(read_manifest(run).engines) == 1


def test_stray_files_under_engines_do_not_stop_an_export(proven):
    (proven / "engines" / ".DS_Store").write_text("x")
    (proven / "engines" / "onnx-fp32" / "deeper").mkdir()
    export(proven, NullProgress(), settings=QUICK)
    assert engine_files(proven) == ["model.onnx", "rows.npz"]


def labelled(*formats):
    return [ENGINES[f"{format_}-fp32"] for format_ in formats]


def test_building_an_identical_engine_keeps_the_recorded_files(proven):
    (before,) = read_manifest(proven).engines

    def interrupted(variant, run_rows, folder, check, progress):
        build(variant, run_rows, folder, check, progress)
        raise KeyboardInterrupt

    same_rows = ExportSettings(speed_s=0)
    export(proven, NullProgress(), settings=same_rows)
    (after,) = read_manifest(proven).engines
    assert after.files == before.files
    inode = (proven / before.files[0].path).stat().st_ino
    with pytest.raises(KeyboardInterrupt):
        export(proven, NullProgress(), settings=same_rows, builder=interrupted)
    assert (proven / before.files[0].path).stat().st_ino == inode
    verify_files(proven, read_manifest(proven).engines[0].files)


def test_an_export_reports_its_engines_and_the_time_left(run, noting, monkeypatch):
    now = [0.0]

    def slow(*arguments):
        now[0] += 70
        return build(*arguments)

    monkeypatch.setattr("pipework.export.run.time.monotonic", lambda: now[0])
    variants = labelled("onnx", "openvino")
    export(run, noting, variants, settings=QUICK, builder=slow)
    assert noting.lines[0] == "2 engines to build and measure: onnx-fp32, openvino-fp32"
    assert [line for line in noting.lines if line.startswith("building ")] == [
        "building onnx-fp32 (1 of 2)",
        "building openvino-fp32 (2 of 2, about 70 s left)",
    ]


@pytest.mark.parametrize(
    "error", repeated([RuntimeError("out of workspace"), ConfigError("no such layer")])
)
def test_a_failed_build_does_not_stop_the_other_engines(run, error, noting):
    def one_fails(variant, run_rows, folder, check, progress):
        if variant.format == "openvino":
            raise error
        return build(variant, run_rows, folder, check, progress)

    variants = labelled("openvino", "onnx")
    records = export(run, noting, variants, settings=MEASURED, builder=one_fails)
    assert [record.name for record in records] == ["onnx-fp32"]
    assert records[0].speed is not None
    assert f"failed: openvino-fp32: {error}" in noting.lines
    assert "1 of 2 failed: openvino-fp32" in noting.lines


def test_missing_calibration_rows_fail_only_the_engine_that_needs_them(run, noting):
    manifest = read_manifest(run)
    changes = {"path": str(run / "missing.tsv"), "kept": None}
    train = manifest.data.splits["train"].model_copy(update=changes)
    data = manifest.data.model_copy(update={"splits": {**manifest.data.splits, "train": train}})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    variants = [ENGINES["onnx-int8-static"], ONNX_FP32]
    (record,) = export(run, noting, variants, settings=QUICK)
    assert record.precision is Precision.FP32
    assert any("failed: " in line and "missing.tsv" in line for line in noting.lines)


def test_a_broken_existing_engine_is_not_measured_and_does_not_stop_an_export(proven, noting):
    (before,) = read_manifest(proven).engines
    (proven / before.files[0].path).write_bytes(b"broken")
    export(proven, noting, labelled("openvino"), settings=MEASURED)
    assert read_manifest(proven).engines[0].name == "openvino-fp32"
    assert any(line.startswith("not measured: onnx-fp32: ") for line in noting.lines)


def test_an_engine_measured_on_another_machine_is_ranked_last(proven):
    manifest = read_manifest(proven)
    (engine,) = manifest.engines
    fast = engine.speed.model_copy(update={"texts_per_s": 1e9, "processor": "another"})
    there = engine.parity.model_copy(update={"processor": "another"})
    elsewhere = engine.model_copy(update={"speed": fast, "parity": there})
    write_manifest(proven, manifest.model_copy(update={"engines": (elsewhere,)}))
    export(proven, NullProgress(), labelled("openvino"), settings=MEASURED)
    names = [one.name for one in read_manifest(proven).engines]
    assert names == ["openvino-fp32", "onnx-fp32"]


def never(*_):
    raise AssertionError


def test_recorded_engines_are_measured_again_without_a_build(proven, noting):
    settings = ExportSettings(speed_s=0.2, rebuild=False)
    (before,) = read_manifest(proven).engines
    (record,) = export(proven, noting, settings=settings, builder=never)
    assert record.files == before.files
    assert record.speed != before.speed
    assert not any("checkpoint" in line for line in noting.lines)


def test_a_measurement_again_builds_no_other_engine(proven, noting):
    settings = ExportSettings(speed_s=0.2, rebuild=False)
    variants = labelled("openvino", "onnx")
    records = export(proven, noting, variants, settings=settings, builder=never)
    assert [record.name for record in records] == ["onnx-fp32"]
    assert engine_files(proven) == ["model.onnx", "rows.npz"]


def test_a_damaged_engine_is_not_measured_again(proven, noting):
    with (proven / read_manifest(proven).engines[0].files[0].path).open("ab") as file:
        file.write(b"0")
    settings = ExportSettings(speed_s=0.2, rebuild=False)
    with pytest.raises(ChangedFileError, match=r"model\.onnx changed"):
        export(proven, noting, labelled("onnx"), settings=settings, builder=never)


def test_a_failed_build_leaves_the_earlier_engine_and_says_so(proven, noting):
    def fails(*_):
        message = "out of workspace"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="out of workspace"):
        export(proven, noting, labelled("onnx"), settings=MEASURED, builder=fails)
    assert "onnx-fp32: the engine of an earlier export stays recorded" in noting.lines
    assert [engine.failure for engine in read_manifest(proven).engines] == ["out of workspace"]
    assert "onnx-fp32: a later export failed: out of workspace" in pipe("show", proven).stdout
    export(proven, noting, labelled("onnx"), settings=MEASURED)
    assert [engine.failure for engine in read_manifest(proven).engines] == [""]


def test_a_measurement_again_needs_a_recorded_engine(proven):
    manifest = (proven / "manifest.json").read_bytes()
    overrides = ["rebuild=false", "speed_s=0.2"]
    message = (
        f"{proven} has none of the engines to measure again: onnx-int8-dynamic, onnx-int8-static; "
        "its engines: onnx-fp32"
    )
    with pytest.raises(RunFolderError, match=f"^{message}$") as caught:
        models.export(proven, "onnx", precision=Precision.INT8, overrides=overrides)
    assert caught.value.exit_code == 2
    assert caught.value.hint == "build them: repeat the command without --set rebuild=false"
    assert (proven / "manifest.json").read_bytes() == manifest


def test_a_measurement_again_deletes_no_engine(proven, monkeypatch):
    kept = []

    def recorder(_locked, records, keep, _progress):
        kept.append(keep)
        return records

    monkeypatch.setattr(ranking, "keep_best", recorder)
    models.export(proven, AUTO, overrides=["rebuild=false", "keep=1", "speed_s=0.1"])
    assert kept == [0]


def test_a_busy_machine_makes_the_ranking_unreliable(proven, noting, monkeypatch):
    def jumpy(openers, rows, seconds, progress):
        speeds = measure(openers, rows, seconds, progress)
        steady, jumps = (
            speeds["onnx-fp32"].model_copy(update={"variation": variation})
            for variation in (0, 0.8)
        )
        return dict.fromkeys(("onnx-fp32", "second", "third"), steady) | dict.fromkeys(
            others, jumps
        )

    settings = ExportSettings(speed_s=0.1, rebuild=False)
    monkeypatch.setattr(ranking, "measure", jumpy)
    others: list[str] = []
    export(proven, noting, settings=settings)  # one of three engines may be unsteady
    assert not any("unreliable" in line for line in noting.lines)
    others.append("jumpy")
    export(proven, noting, settings=settings)
    (line,) = [line for line in noting.lines if "unreliable" in line]
    assert line.startswith("the speed of an engine is uncertain by 80%: other programs")
    assert line.endswith(f"pipe export {proven} --to auto --set rebuild=false")


def test_reference_rows_cover_every_predicted_label(run, monkeypatch):
    most = len(read_manifest(run).task.labels)
    monkeypatch.setattr("pipework.export.parity_checker.REFERENCE_DEV_ROWS", most)
    (record,) = export(run, NullProgress(), settings=QUICK)
    rows = ReferenceRows.read(run / record.files[1].path)
    run_rows = RunRows.open(run, read_manifest(run), QUICK)
    with open_proven(run, read_manifest(run)) as engine:
        dev_N = engine.infer([row.encoding for row in run_rows.dev]).values.argmax(axis=1)
    kept_N = rows.outputs.values[len(run_rows.edge_cases) :].argmax(axis=1)
    assert {*dev_N[:most]} < {*dev_N} == {*kept_N}


def test_other_tokens_than_those_of_the_training_are_rejected(run):
    manifest = read_manifest(run)
    dev = manifest.data.metrics["dev"]
    assert dev.tokens is not None
    other = {"dev": dev.model_copy(update={"tokens": "0" * 16})}
    data = manifest.data.model_copy(update={"metrics": other})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    with pytest.raises(CheckFailedError, match="token ids of the dev rows differ") as caught:
        export(run, NullProgress(), settings=QUICK)
    assert "tokenizers" in caught.value.hint


def test_a_disk_with_too_little_space_is_refused_before_the_build(run, monkeypatch):
    weights = sum(file.size for file in read_manifest(run).model.checkpoint)
    usage = shutil.disk_usage(run)._replace(free=2 * weights - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = rf"an engine in {run}/engines needs about .* MB, but .* MB are free"
    with pytest.raises(RunFolderError, match=message) as caught:
        export(run, NullProgress(), settings=QUICK)
    assert caught.value.hint == "free space on the disk"
    assert not (run / "engines").exists()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, RunFolderError), (errno.EIO, OSError)])
def test_a_disk_that_becomes_full_is_reported_and_leaves_no_files(run, number, kind):
    def full(variant, run_rows, folder, check, progress):
        del variant, run_rows, check, progress
        (folder / "model.onnx").write_bytes(bytes(99))
        raise OSError(number, os.strerror(number))

    with pytest.raises(kind, match=os.strerror(number)):
        export(run, NullProgress(), settings=QUICK, builder=full)
    assert not (run / "engines").exists()
    assert read_manifest(run).engines == ()


def test_unlabelled_texts_are_compared_and_bound_the_changed_labels(run, tmp_path, capsys):
    texts = tmp_path / "more.tsv"
    texts.write_text("text\n" + "".join(f"text {number} of a page\n" for number in range(400)))
    overrides = ["speed_s=0", "dev_rows=20"]
    models.export(run, "onnx", overrides=overrides)
    (few,) = read_manifest(run).engines
    assert few.parity.labels_bound == pytest.approx(3 / few.parity.inputs, rel=0.05)
    assert "exclude only that more than" in capsys.readouterr().out
    models.export(run, "onnx", overrides=[*overrides, "dev_rows=400", f"unlabelled={texts}"])
    (more,) = read_manifest(run).engines
    assert more.parity.inputs > few.parity.inputs + 380
    assert more.parity.labels_bound < few.parity.labels_bound
    assert more.parity.scores.reference == pytest.approx(few.parity.scores.reference, abs=0.3)


def test_the_bound_of_changed_labels_is_that_of_clopper_and_pearson():
    changes = (
        PredictionChange(argmax_agreement=1, flips=n, max_change=0, inputs=1000) for n in (0, 5)
    )
    assert [change.labels_bound for change in changes] == pytest.approx(
        [0.00299, 0.01048], rel=0.01
    )
