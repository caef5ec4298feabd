"""What was not proven on this kind of processor is proven when it is opened, or not served."""

import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from pipework.errors import CheckFailedError, MissingDependencyError, RunFolderError
from pipework.run_folder.change_limits import ChangeLimits
from pipework.run_folder.engine_record import EngineBuild, Tolerance
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE
from pipework.serve.engines import choose_engine, open_engine, open_first, open_proven
from pipework.serve.engines.reproof import batch_sizes, prove_here
from pipework.serve.engines.tensorrt_packages import gpu_or_none
from pipework.tasks.outputs import Outputs
from tests.serve.conftest import reference_rows

FOLDER = "engines/onnx"
kept_rows = partial(reference_rows, repetitions=7)


def change(run, *, rows=None, **changes):
    """Change the first engine's record, and the rows that are kept with it."""
    manifest = read_manifest(run)
    record = manifest.engines[0]
    files = {file.path: file for file in record.files}
    if rows is not None:
        rows.write(run / FOLDER / REFERENCE_ROWS_FILE)
        files[f"{FOLDER}/{REFERENCE_ROWS_FILE}"] = record_file(
            run, run / FOLDER / REFERENCE_ROWS_FILE
        )
    record = record.model_copy(update={"files": tuple(files.values()), **changes})
    write_manifest(run, manifest.model_copy(update={"engines": (record,)}))


@pytest.fixture
def built(run, tmp_path):
    """A run whose engine was built and never run."""
    folder = shutil.copytree(run, tmp_path / "built")
    change(folder, rows=kept_rows(folder), parity=None)
    return folder


def test_an_engine_that_answers_as_the_kept_rows_say_is_served(built, caplog):
    caplog.set_level("INFO", "pipework.serve.engines.reproof")
    open_proven(built, read_manifest(built)).close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("engine onnx proven on ")
    assert "over 42 rows" in line


@pytest.mark.parametrize("wrong", [0.01, np.nan, np.inf])
def test_an_engine_with_other_predictions_is_not_served(built, wrong):
    rows = kept_rows(built)
    rows.outputs.values[-1, 1] += wrong
    change(built, rows=rows)
    with pytest.raises(CheckFailedError, match="predictions of engine onnx differ") as caught:
        open_proven(built, read_manifest(built))
    assert caught.value.exit_code == 3
    assert "tolerance 0.0001" in str(caught.value)


def test_an_answer_within_the_tolerance_of_the_record_passes(built):
    rows = kept_rows(built)
    rows.outputs.values[:] += 0.01
    tolerance = read_manifest(built).engines[0].tolerance
    wide = tolerance.model_copy(update={"max_abs": 0.02, "mean_abs": 0.02})
    change(built, rows=rows, tolerance=wide)
    open_proven(built, read_manifest(built)).close()
    change(built, tolerance=wide.model_copy(update={"mean_abs": 0.005}))  # all are off together
    with pytest.raises(CheckFailedError, match=r"0\.01 in the mean \(0\.005\)"):
        open_proven(built, read_manifest(built))


WIDE = Tolerance(max_abs=99, mean_abs=99, spread=99, flips=1, flips_outside=1, score_drop=1)


@pytest.mark.parametrize(("limit", "wrong_rows"), [("flips", 42), ("flips_outside", 1)])
def test_logits_that_may_differ_do_not_excuse_labels_that_change(built, limit, wrong_rows):
    rows = kept_rows(built)
    rows.outputs.values[:wrong_rows] = np.roll(rows.outputs.values[:wrong_rows], 1, axis=1)
    change(built, rows=rows, tolerance=WIDE)
    open_proven(built, read_manifest(built)).close()
    change(built, tolerance=WIDE.model_copy(update={limit: 0.02}))
    with pytest.raises(CheckFailedError, match=f"beyond {limit}:"):
        open_proven(built, read_manifest(built))


def test_a_broken_limit_of_the_bias_is_reported_with_its_value_and_setting(built):
    rows = kept_rows(built)
    rows.outputs.values[:] += 0.01
    change(built, rows=rows, tolerance=WIDE.model_copy(update={"bias": 0.001}))
    text = r"bias 0\.01 \(limit 0\.001, see the export setting tolerances\.fp32\.bias_ratio\)"
    with pytest.raises(CheckFailedError, match=text):
        open_proven(built, read_manifest(built))


def test_values_of_a_regression_count_in_the_unit_of_the_first_proof(regression_run, tmp_path):
    run = shutil.copytree(regression_run, tmp_path / "values")
    rows, parity = kept_rows(run), read_manifest(run).engines[0].parity
    rows.outputs.values[:] += 1  # many times the deviation of these rows
    tolerance = WIDE.model_copy(update={"max_abs": 0.5})
    change(run, rows=rows, tolerance=tolerance, parity=None)
    with pytest.raises(CheckFailedError, match="beyond max_abs:"):
        open_proven(run, read_manifest(run))
    change(run, parity=parity.model_copy(update={"processor": "another", "unit": 100}))
    open_proven(run, read_manifest(run)).close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_limits_of_changes_hold_for_the_predictions_on_this_machine(
    built, run, caplog, elsewhere
):
    rows, (good,) = kept_rows(built), read_manifest(run).engines
    rows.outputs.values[:3] = np.roll(rows.outputs.values[:3], 1, axis=1)
    parity = good.parity.model_copy(update={"processor": "another"}) if elsewhere else None
    change(built, rows=rows, parity=parity, tolerance=WIDE)
    manifest = read_manifest(built)
    second = good.model_copy(update={"name": "second"})
    both = manifest.model_copy(update={"engines": (*manifest.engines, second)})

    def opened(manifest, name=None, **limits):
        caplog.clear()
        record, engine = open_first(built, manifest, name, limits=ChangeLimits(**limits))
        engine.close()
        return record.name

    assert opened(both) == "second"
    (line,) = [record.getMessage() for record in caplog.records]
    text = "engine onnx exceeds the limits of changes: it changes 7.14% of the labels, probabil"
    assert line.startswith(text)
    assert opened(both, label_changes=1, probability_change=1) == "onnx"
    assert opened(both, label_changes=1) == "second"
    assert opened(both, "onnx") == "onnx"
    assert caplog.records == []
    assert opened(manifest) == "onnx"  # the only one
    assert {record.getMessage() for record in caplog.records} == {line}


def test_the_check_measures_the_change_of_a_regression_by_the_recorded_range(
    regression_run, tmp_path
):
    run = shutil.copytree(regression_run, tmp_path / "values")
    rows, record = kept_rows(run), read_manifest(run).engines[0]
    rows.outputs.values[0] += 1
    manifest = read_manifest(run)
    for target_range in (None, 50.0):
        parity = record.parity.model_copy(update={"target_range": target_range})
        known = record.model_copy(update={"parity": parity, "tolerance": WIDE})
        with open_engine(run / FOLDER / "model.onnx", known, manifest) as engine:
            changed = prove_here(engine, known, rows, manifest.task)
        used = target_range or np.ptp(rows.outputs.values)
        assert changed.max_change == pytest.approx(1 / used, rel=1e-3)
        assert manifest.task.describe_change(changed).startswith("values by up to 1 (")


class Failing:
    """An engine whose runtime raises an error in each call."""

    processor = "a processor"
    collate = SimpleNamespace(buckets=())

    def infer(self, _encodings):
        message = "out of memory\nand more"
        raise RuntimeError(message)


class NotANumber(Failing):
    def infer(self, encodings):
        return Outputs.of(np.full((len(encodings), 1), np.nan, np.float32))


def test_a_regression_without_a_number_is_refused(regression_run):
    manifest = read_manifest(regression_run)
    with pytest.raises(CheckFailedError, match="max_abs"):
        prove_here(NotANumber(), manifest.engines[0], kept_rows(regression_run), manifest.task)


def test_an_engine_that_fails_on_the_rows_is_refused_with_the_reason(run):
    manifest = read_manifest(run)
    with pytest.raises(
        CheckFailedError, match="engine onnx fails on a processor in batches of 1: out"
    ):
        prove_here(Failing(), manifest.engines[0], kept_rows(run), manifest.task)


def test_without_the_rows_there_is_no_proof(built):
    record = read_manifest(built).engines[0]
    files = tuple(file for file in record.files if not file.path.endswith(REFERENCE_ROWS_FILE))
    change(built, files=files)
    with pytest.raises(RunFolderError, match=r"expected one file rows\.npz, found 0"):
        open_proven(built, read_manifest(built))


def test_changed_reference_rows_are_refused(built):
    with (built / FOLDER / REFERENCE_ROWS_FILE).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(RunFolderError, match=r"rows\.npz changed"):
        open_proven(built, read_manifest(built))


@pytest.mark.parametrize("other", [{"processor": "A"}, {"runtime": "A 1.0"}, {"threads": (999,)}])
def test_parity_is_checked_again_where_it_was_not_checked(built, run, other):
    parity = read_manifest(run).engines[0].parity
    rows = kept_rows(built)
    rows.outputs.values[:] += 1
    change(built, rows=rows, parity=parity)
    open_proven(built, read_manifest(built)).close()  # proven on this kind of processor: no check
    change(built, parity=parity.model_copy(update=other))
    with pytest.raises(CheckFailedError, match="differ from the checkpoint"):
        open_proven(built, read_manifest(built))


OTHER = EngineBuild(opset=17, built_with={"tensorrt_rtx": "0.1"}, target="Other GPU", profiles=())


def test_engines_built_for_this_machine_are_preferred(built):
    manifest = read_manifest(built)
    (record,) = manifest.engines
    foreign = record.model_copy(update={"name": "foreign", "format": "tensorrt", "built": OTHER})
    both = manifest.model_copy(update={"engines": (foreign, record)})
    assert choose_engine(both).name == "onnx"
    assert choose_engine(both, "foreign").name == "foreign"
    assert choose_engine(manifest.model_copy(update={"engines": (foreign,)})).name == "foreign"


def test_engines_that_cannot_be_opened_are_skipped_with_a_warning(built, run, caplog):
    rows = kept_rows(built)
    rows.outputs.values[:] += 1
    change(built, rows=rows)
    (wrong,), (good,) = (read_manifest(one).engines for one in (built, run))
    manifest = read_manifest(built)
    both = manifest.model_copy(
        update={"engines": (wrong, good.model_copy(update={"name": "second"}))}
    )
    record, engine = open_first(built, both)
    engine.close()
    assert record.name == "second"
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert line.startswith("engine onnx is not served here: predictions of engine onnx differ")
    with pytest.raises(CheckFailedError, match="predictions of engine onnx"):
        open_first(built, both, "onnx")  # an engine selected by name is not replaced
    no_runtime = wrong.model_copy(update={"name": "foreign", "format": "tensorrt", "built": OTHER})
    with pytest.raises(CheckFailedError, match="predictions of engine onnx"):  # the first reason
        open_first(built, manifest.model_copy(update={"engines": (no_runtime, wrong)}))


def test_a_file_that_changed_is_not_passed_over(built, run):
    (wrong,), (good,) = (read_manifest(one).engines for one in (built, run))
    second = good.model_copy(update={"name": "second"})
    both = read_manifest(built).model_copy(update={"engines": (wrong, second)})
    (built / FOLDER / REFERENCE_ROWS_FILE).unlink()
    with pytest.raises(RunFolderError, match=r"rows\.npz is missing"):
        open_first(built, both)


def test_a_built_engine_is_refused_in_words_where_there_is_no_gpu(built):
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here")
    change(built, name="tensorrt-fp16", format="tensorrt", built=OTHER)
    manifest = read_manifest(built)
    shutil.copy(built / FOLDER / "model.onnx", built / FOLDER / "model.engine")
    files = (record_file(built, built / FOLDER / "model.engine"), *manifest.engines[0].files[1:])
    change(built, files=files)
    expected = "engine tensorrt-fp16 was built, not run, and it cannot run here: there is no NVIDIA"
    with pytest.raises(MissingDependencyError, match=expected):
        open_proven(built, read_manifest(built))


def test_each_size_of_calls_that_are_captured_has_its_batches():
    rows = SimpleNamespace(encodings=[range(10)] * 500)
    buckets = [SimpleNamespace(tokens=tokens) for tokens in (512, 1024, 16_384)]
    engine = SimpleNamespace(collate=SimpleNamespace(buckets=buckets))
    assert batch_sizes(engine, rows) == [1, 32, 38, 77, 500]
    engine.collate.buckets = ()
    assert batch_sizes(engine, rows) == [1, 32]
