"""Parity checks: each limit of the tolerance rejects an engine by itself."""

import itertools
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pipework.data.splits import split_source
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import TOLERANCES, ExportSettings
from pipework.export.inference import evaluate_run
from pipework.export.parity.case import SIZES, EngineFailedError
from pipework.export.parity.prove import ReferenceLogits, prove
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Tolerance
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.settings import load_settings
from pipework.tasks.outputs import Outputs
from pipework.text.padding import Padding
from pipework.train.model.checkpoint_engine import CheckpointEngine, open_reference
from tests.export.conftest import ENGINES, INT8_LAYERS
from tests.repetitions import repeated

DYNAMIC = ENGINES["onnx-int8-dynamic"]
INTERRUPTED = 50  # calls before Ctrl-C
METRICS = [
    ("multi_run", "micro_f1"),
    ("regression_run", "pearson"),
    ("marked_run", "directional_f1"),
]


def collate(manifest, *, whole=True):
    padding = Padding.of(manifest.input)
    return Collate(layout=Layout.PADDED, padding=padding, spans=False, whole=whole)


def test_recorded_shapes_are_those_that_the_graph_ran(run, monkeypatch):
    ran = set()
    inner = OnnxRuntimeEngine._start  # noqa: SLF001

    def watched(self, arrays):
        ran.add(arrays["input_ids"].shape)
        return inner(self, arrays)

    monkeypatch.setattr(OnnxRuntimeEngine, "_start", watched)
    (record,) = export(run, NullProgress(), settings=ExportSettings(speed_s=0))
    assert set(record.parity.shapes) <= ran


def test_ctrl_c_ends_the_check_at_once(run, monkeypatch):
    calls = itertools.count()
    inner = OnnxRuntimeEngine._start  # noqa: SLF001

    def interrupted(self, arrays):
        if next(calls) == INTERRUPTED:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.005)
        return inner(self, arrays)

    monkeypatch.setattr(OnnxRuntimeEngine, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(run, NullProgress(), settings=ExportSettings(speed_s=0))
    assert next(calls) < 2 * INTERRUPTED


def test_a_correct_export_passes_far_below_the_tolerance(exported_run):
    (engine,) = read_manifest(exported_run).engines
    assert engine.parity.passed
    assert engine.parity.max_abs < 1e-5
    assert engine.parity.flips == 0
    assert engine.parity.metric == "accuracy"
    assert engine.parity.scores.engine == engine.parity.scores.reference
    assert (engine.parity.scores.low, engine.parity.scores.high) == (0, 0)
    checkpoint = evaluate_run(exported_run, None, "dev", None, NullProgress()).calibration
    assert engine.parity.calibration.reference == pytest.approx(checkpoint.error, abs=1e-4)
    assert engine.parity.calibration.brier_reference == pytest.approx(checkpoint.brier, abs=1e-4)
    assert abs(engine.parity.calibration.change) < 1e-4


def test_a_parity_check_covers_batch_sizes_and_lengths_up_to_the_limit(exported_run):
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    longest = manifest.input.max_length
    assert {(batch, longest) for batch in SIZES} <= set(engine.parity.shapes)
    assert {(1, length) for length in (2, 3, 8, 16, 32, longest)} <= set(engine.parity.shapes)
    assert engine.parity.rows > manifest.data.splits["dev"].rows


@pytest.fixture(scope="module")
def rows_and_logits(exported_run):
    """The rows of a run and its checkpoint's logits."""
    manifest = read_manifest(exported_run)
    run_rows = RunRows.open(exported_run, manifest, ExportSettings(dev_rows=40))
    reference = open_reference(exported_run, manifest)
    return run_rows, ReferenceLogits.of(run_rows, reference, NullProgress())


class Changed(OnnxRuntimeEngine):
    """A correct engine whose logits are changed."""

    def __init__(self, path, collate, change, threads=None):
        self.change = lambda _encodings, logits_NC: logits_NC
        super().__init__(path, collate, threads=threads)
        self.change = change

    def infer(self, encodings):
        return Outputs.of(self.change(encodings, super().infer(encodings).values))


ANYTHING = Tolerance(max_abs=99, mean_abs=99, spread=99, flips=1, flips_outside=1, score_drop=1)


def proven_with(rows_and_logits, change, **limits):
    """Check the changed engine with only these limits."""
    run_rows, expected = rows_and_logits
    manifest = run_rows.manifest
    path = run_rows.run / manifest.engines[0].files[0].path
    return prove(
        run_rows,
        expected,
        opener=partial(Changed, path, collate(manifest, whole=False), change),
        tolerance=ANYTHING.model_copy(update=limits),
        progress=NullProgress(),
    )


def nothing(_encodings, logits_NC):
    return logits_NC


def one_answer_off(encodings, logits_NC):
    if len(encodings) == 7:
        logits_NC[3, 1] -= 0.25
    return logits_NC


def all_shifted(_encodings, logits_NC):
    return logits_NC + np.float32(0.02)  # which no softmax sees


def off_by_the_size_of_the_batch(encodings, logits_NC):
    return logits_NC + np.float32(1e-3 * len(encodings))


def no_number(encodings, logits_NC):
    if len(encodings) == 2:
        logits_NC[0] = np.nan
    return logits_NC


def long_texts_are_all_the_first_label(encodings, logits_NC):
    long_N = np.array([len(encoding) for encoding in encodings]) > 12
    logits_NC[long_N, 0] = logits_NC[long_N].max(axis=1) + 5
    return logits_NC


def the_best_is_the_worst(_encodings, logits_NC):
    return -logits_NC


BROKEN = [
    (one_answer_off, "max_abs", 0.2),
    (all_shifted, "mean_abs", 0.01),
    (off_by_the_size_of_the_batch, "spread", 0.01),
    (long_texts_are_all_the_first_label, "flips", 0.1),
    (the_best_is_the_worst, "score_drop", 0.1),
]


@pytest.mark.parametrize(("change", "limit", "allowed"), BROKEN)
def test_each_limit_rejects_by_itself(rows_and_logits, change, limit, allowed):
    result = proven_with(rows_and_logits, change, **{limit: allowed})
    assert [breach.limit for breach in result.breaches] == [limit]
    assert not result.parity.passed
    assert not result.breaches[0].found <= allowed


def test_noise_within_all_limits_is_refused(rows_and_logits):
    random = np.random.default_rng()

    def noisy(_encodings, logits_NC):
        return logits_NC + random.normal(0, 1e-4, logits_NC.shape).astype(np.float32)

    result = proven_with(rows_and_logits, noisy)
    assert [breach.limit for breach in result.breaches] == ["repeat"]
    assert 0 < result.breaches[0].found < 1e-2


def test_nan_logits_break_every_limit_of_differences(rows_and_logits):
    result = proven_with(rows_and_logits, no_number)
    assert [breach.limit for breach in result.breaches] == ["max_abs", "mean_abs", "spread"]


def test_a_label_change_over_a_wide_margin_is_rejected(rows_and_logits):
    run_rows, expected = rows_and_logits
    clear = int(np.ptp(np.sort(expected.rows.dev.expected.values)[:, -2:], axis=1).argmax())
    ids = run_rows.dev[clear].encoding.ids.tolist()

    def one_text_turned(encodings, logits_NC):
        for row, encoding in enumerate(encodings):
            if encoding.ids.tolist() == ids:
                logits_NC[row] *= -1
        return logits_NC

    result = proven_with(rows_and_logits, one_text_turned, flips_outside=0)
    assert [breach.limit for breach in result.breaches] == ["flips_outside"]
    assert result.parity.flips >= result.parity.flips_outside >= 1


def test_a_nan_limit_rejects_every_engine(rows_and_logits):
    assert (
        proven_with(rows_and_logits, nothing, max_abs=float("nan")).breaches[0].limit == "max_abs"
    )


@pytest.mark.parametrize("change", [nothing, one_answer_off, all_shifted])
def test_differences_within_the_limits_pass(rows_and_logits, change):
    result = proven_with(
        rows_and_logits, change, max_abs=0.26, mean_abs=0.03, spread=0.26, flips=0.2
    )
    assert result.breaches == ()
    assert result.parity.passed


def test_the_worst_cases_are_reported_with_their_batches(rows_and_logits):
    result = proven_with(rows_and_logits, one_answer_off)
    worst = result.worst[0]
    assert result.parity.max_abs == pytest.approx(0.25, abs=1e-4)
    assert (len(worst.rows), worst.index, worst.rule) == (7, 3, "by 7 in order")
    names = [case.row.name for case in result.worst]
    assert len(set(names)) == len(names)


def test_an_engine_error_reports_its_batch(rows_and_logits):
    def broken(encodings, logits_NC):
        if len(encodings) == 32:
            message = "no such shape"
            raise ValueError(message)
        return logits_NC

    with pytest.raises(
        EngineFailedError, match=r"for 32 inputs of up to \d+ tokens: no such shape"
    ):
        proven_with(rows_and_logits, broken)


def test_the_checkpoint_runs_once_for_all_engines(run, monkeypatch):
    calls = []
    inner = CheckpointEngine.infer
    monkeypatch.setattr(
        CheckpointEngine,
        "infer",
        lambda self, rows: calls.append(len(rows)) or inner(self, rows),
    )
    variants = [ENGINES["onnx-fp32"], ENGINES["onnx-fp32-packed"]]
    export(run, NullProgress(), variants, settings=ExportSettings(speed_s=0, dev_rows=30))
    assert len(read_manifest(run).engines) == 2
    # The edge cases, the sampled dev rows, the rows with all tokens, of all lengths and of one
    # token, and the remaining dev rows.
    edge, dev, vocabulary, lengths, short, rest = calls
    assert (dev, dev + rest) == (30, read_manifest(run).data.splits["dev"].rows)
    assert edge > dev
    assert vocabulary > dev
    assert (lengths, short) == (62, 256)


def test_a_run_without_dev_is_checked_on_the_sample_without_a_score(pair_run, tmp_path):
    run = shutil.copytree(pair_run, tmp_path / "run")
    manifest = read_manifest(run)
    data = manifest.data.model_copy(update={"splits": {}})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    (record,) = export(run, NullProgress(), settings=ExportSettings(speed_s=0))
    assert record.parity.passed
    assert record.parity.scores is None
    assert record.parity.rows > 400


@pytest.mark.parametrize("key", ["tolerances.int8.max_abs", "tolerances.fp32.spread", "speed_s"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "-inf"])
def test_a_limit_is_a_finite_number_from_0(key, value):
    with pytest.raises(ConfigError, match=f"--set {key}: Input should be .*, found "):
        load_settings(ExportSettings, None, [f"{key}={value}"])


def test_limits_are_set_by_name_and_recorded(run):
    settings = load_settings(
        ExportSettings, None, ["tolerances.fp32.max_abs=1e-12", "speed_s=0", "dev_rows=20"]
    )
    with pytest.raises(CheckFailedError, match=r"\(max_abs\): .* \(tolerance 1e-12\)"):
        export(run, NullProgress(), settings=settings)
    settings = load_settings(
        ExportSettings, None, ["tolerances.fp32.mean_abs=0.5", "speed_s=0", "dev_rows=20"]
    )
    (record,) = export(run, NullProgress(), settings=settings)
    assert record.tolerance == TOLERANCES[Precision.FP32].model_copy(update={"mean_abs": 0.5})


def test_a_refusal_names_the_value_and_the_setting_of_a_limit_by_length(run):
    overrides = ["tolerances.int8.error_ratio=0.001", "speed_s=0", "dev_rows=20"]
    settings = load_settings(ExportSettings, None, overrides)
    text = r"rms of 1 to \d+ tokens [\d.e-]+ \(limit [\d.e-]+, .*\.error_ratio\)"
    with pytest.raises(CheckFailedError, match=text) as caught:
        export(run, NullProgress(), [DYNAMIC], settings=settings)
    table = caught.value.details.splitlines()
    assert len({len(line) for line in table[: table.index("")]}) == 1


@pytest.mark.parametrize(("fixture", "metric"), repeated(METRICS))
def test_other_tasks_are_checked_by_their_metric(request, tmp_path, fixture, metric):
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / fixture)
    (record,) = export(run, NullProgress(), settings=ExportSettings(speed_s=0))
    assert record.parity.passed
    assert record.parity.flips == 0
    assert record.parity.metric == metric
    assert record.parity.scores.change == pytest.approx(0, abs=1e-3)


def test_a_run_without_vocabulary_rows_is_checked(rows_and_logits, noting):
    run_rows = replace(rows_and_logits[0], vocabulary=[], unread_buckets=7)
    reference = open_reference(run_rows.run, run_rows.manifest)
    expected = ReferenceLogits.of(run_rows, reference, noting)
    assert noting.lines == ["no text was found for 7 buckets of the n-gram table: not checked"]
    assert len(expected.rows.vocabulary.rows) == 0
    assert proven_with((run_rows, expected), nothing, max_abs=1e-4).parity.passed


def int8_limits(rows_and_logits):
    run_rows, expected = rows_and_logits
    tolerance = expected.tolerance(run_rows, DYNAMIC, INT8_LAYERS)
    return {"bias": tolerance.bias, "bands": tolerance.bands}


def one_class_shifted(_encodings, logits_NC):
    logits_NC[:, 2] += 0.18
    return logits_NC


def long_texts_are_wrong(encodings, logits_NC):
    long_N = np.array([len(encoding) for encoding in encodings]) > 32
    logits_NC[long_N] += np.random.default_rng(0).normal(0, 0.3, logits_NC[long_N].shape)
    return logits_NC.astype(np.float32)


@pytest.mark.parametrize(
    ("change", "limits"),
    [
        (one_class_shifted, {"bias", "rms of 1 to 4 tokens", "rms of 33 to 64 tokens"}),
        (long_texts_are_wrong, {"rms of 33 to 64 tokens"}),
    ],
)
def test_int8_limits_reject_errors_that_rounding_does_not_cause(rows_and_logits, change, limits):
    result = proven_with(rows_and_logits, change, **int8_limits(rows_and_logits))
    assert result.parity.max_abs < TOLERANCES[Precision.INT8].max_abs
    broken = {breach.limit for breach in result.breaches}
    assert limits <= broken
    assert len(limits) > 1 or limits == broken


def test_a_shift_of_one_class_that_the_limits_of_lengths_allow_is_a_bias(rows_and_logits):
    limits = int8_limits(rows_and_logits)

    def shifted(_encodings, logits_NC):
        logits_NC[:, 2] += np.float32(1.5 * limits["bias"][2])
        return logits_NC

    result = proven_with(rows_and_logits, shifted, **limits)
    assert [breach.limit for breach in result.breaches] == ["bias"]
    assert result.parity.flips <= 1


def test_the_change_of_the_values_of_a_regression_is_a_share_of_the_range(regression_run, tmp_path):
    run = shutil.copytree(regression_run, tmp_path / "run")
    (record,) = export(run, NullProgress(), settings=ExportSettings(speed_s=0))
    rows = split_source(run, read_manifest(run), "dev").rows()
    target_range = np.ptp([float(row.label) for row in rows])
    assert record.parity.target_range == pytest.approx(target_range)
    largest = record.parity.max_abs / target_range  # also over the rows of the vocabulary
    assert largest / 20 < record.parity.max_change <= largest
