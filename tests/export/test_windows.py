"""Windows over longer texts: set by an export, and used wherever texts are predicted."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from pipework.cli import app
from pipework.data.examples import Example
from pipework.data.splits import split_source
from pipework.errors import ConfigError
from pipework.export.config import ExportSettings
from pipework.export.first_stage import check_first_stage
from pipework.export.inference import evaluate_run, open_model, predict_run
from pipework.export.run import export
from pipework.predict import text_model
from pipework.predict.text_model import EngineModel
from pipework.progress import NullProgress
from pipework.run_folder.manifest import LockedRun, read_manifest
from pipework.scoring.evaluation import infer_all, label_array
from pipework.settings import load_settings
from pipework.tasks.outputs import Outputs
from pipework.tasks.windows import Join, Windows
from pipework.text.encoding import all_windows, open_encoder
from pipework.train.config.run_config import load_config
from pipework.train.run import train
from tests.conftest import made_once

MAX_LENGTH = 16
CHOSEN = Windows(stride=4, join=Join.MEAN)


def settings(*overrides):
    return load_settings(ExportSettings, None, ["speed_s=0", *overrides])


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A run that reads 16 tokens at a time, exported with windows; read it only."""

    def make(run):
        quick = ["train.epochs=3", "train.batch_size=16", "train.precision=fp32"]
        overrides = [*quick, f"model.max_length={MAX_LENGTH}"]
        train(load_config("sample", overrides), run, NullProgress())
        export(run, NullProgress(), settings=settings("windows.stride=4"))

    return made_once(tmp_path_factory, "windowed", make)


@pytest.fixture
def changed(windowed, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(windowed, tmp_path / "changed")


def test_the_windows_are_recorded_and_kept_by_later_exports(changed):
    assert read_manifest(changed).windows == CHOSEN
    export(changed, NullProgress(), settings=settings("rebuild=false"))
    assert read_manifest(changed).windows == CHOSEN
    maximum = settings("rebuild=false", "windows.stride=2", "windows.join=max")
    export(changed, NullProgress(), settings=maximum)
    assert read_manifest(changed).windows == Windows(stride=2, join=Join.MAX)
    export(changed, NullProgress(), settings=settings("rebuild=false", "windows.join=first"))
    assert read_manifest(changed).windows is None


def test_an_answer_is_the_join_of_the_windows_computed_alone(windowed):
    manifest = read_manifest(windowed)
    rows = [*split_source(windowed, manifest, "dev").rows()][:40]
    texts = [*rows, Example(text=" ".join(row.text for row in rows))]
    first = open_encoder(windowed, manifest).encode_windows(texts, CHOSEN)
    inputs, offsets = all_windows(first)
    engine = open_model(windowed, manifest, checkpoint=False)
    with EngineModel.open(windowed, manifest, engine) as model:
        found = model.infer(texts)
        together = Outputs(engine.infer(inputs).values, offsets)
        alone = Outputs(np.concatenate([engine.infer([one]).values for one in inputs]), offsets)
        predictions = model.predict(texts)
        columns = model.columns(texts)
    together, alone = (CHOSEN.joined(one, manifest.task).values for one in (together, alone))
    np.testing.assert_array_equal(found.outputs.values, together)
    np.testing.assert_allclose(found.outputs.values, alone, atol=1e-5)
    assert found.windows == tuple(np.diff(offsets).tolist())
    assert {1, 2} <= {*found.windows}
    assert found.windows[-1] > 40
    assert found.truncated == ()
    assert [one.windows for one in predictions] == [*found.windows]
    assert [*columns["windows"].values] == [*found.windows]


def test_scores_are_those_of_whole_texts(windowed, noting):
    manifest = read_manifest(windowed)
    source = split_source(windowed, manifest, "dev")
    rows = [*source.rows()]
    truth_N = label_array(rows, manifest.task, "dev")
    first = open_encoder(windowed, manifest).encode_windows(rows, CHOSEN)
    inputs, offsets = all_windows(first)
    with open_model(windowed, manifest, checkpoint=True) as checkpoint:
        outputs = Outputs(infer_all(checkpoint, inputs, noting).values, offsets)
    whole = manifest.task.evaluate(CHOSEN.joined(outputs, manifest.task), truth_N).score
    assert evaluate_run(windowed, None, "dev", None, noting).score == whole


def test_the_export_tells_what_windows_change(changed, noting):
    export(changed, noting, settings=settings("rebuild=false", "windows.stride=7"))
    (line,) = [line for line in noting.lines if line.startswith("windows: ")]
    assert "of the dev texts are longer than 16 tokens" in line
    assert "windows each" in line
    assert "with windows (change " in line
    manifest = read_manifest(changed)
    with LockedRun.open(changed) as locked:
        locked.set_windows(None)
        locked.record_engines(manifest.engines)
    without = evaluate_run(changed, None, "dev", None, noting).score
    assert f"accuracy {without:.4f} with truncated texts, " in line


def test_texts_that_fit_need_no_windows(run, noting):
    export(run, noting, settings=settings("windows.stride=8"))
    assert "windows: no text of dev is longer than 64 tokens" in noting.lines


def test_a_decision_is_chosen_with_the_windows(changed, noting):
    decided = settings("decision.min_score=0.4")
    export(changed, noting, settings=decided)
    with pytest.raises(ConfigError, match="were chosen without these windows"):
        export(changed, noting, settings=settings("windows.stride=2"))
    assert read_manifest(changed).windows == CHOSEN
    both = settings("windows.stride=2", "decision.min_score=0.5")
    export(changed, noting, settings=both)
    manifest = read_manifest(changed)
    assert (manifest.windows.stride, manifest.task.min_scores) == (2, (0.5,))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["windows.join=max"], "windows.join=max needs windows.stride"),
        (["windows.join=first", "windows.stride=1"], "cannot be used together"),
        (["windows.stride=-1"], "greater than or equal to 0"),
    ],
)
def test_settings_that_contradict_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        settings(*overrides)


def test_windows_that_share_most_tokens_are_refused(changed):
    with pytest.raises(ConfigError, match=r"expected windows with a stride of at most 7, half"):
        export(changed, NullProgress(), settings=settings("windows.stride=8"))


def test_pairs_have_no_windows(pair_run):
    with pytest.raises(ConfigError, match="does not read single texts"):
        export(pair_run, NullProgress(), settings=settings("windows.stride=1"))


def test_a_cascade_has_no_windows(windowed):
    manifest = read_manifest(windowed)
    with pytest.raises(ConfigError, match="reads longer texts in windows"):
        check_first_stage(windowed, manifest, windowed / "linear")


def test_long_texts_are_computed_in_parts(windowed, monkeypatch):
    manifest = read_manifest(windowed)
    texts = [Example(text="a word and another one " * (1 + number % 7)) for number in range(40)]
    with EngineModel.open(
        windowed, manifest, open_model(windowed, manifest, checkpoint=False)
    ) as model:
        whole = model.infer(texts)
        encode, sizes = model.codec.encode, []
        monkeypatch.setattr(
            model.codec, "encode", lambda part: sizes.append(len(part)) or encode(part)
        )
        monkeypatch.setattr(text_model, "PART", 300)
        parts = model.infer(texts)
        none = model.infer([])
    assert sum(sizes) == len(texts)
    assert len(sizes) > 5
    assert parts.windows == whole.windows
    np.testing.assert_allclose(parts.outputs.values, whole.outputs.values, atol=1e-5)
    assert len(none.outputs) == 0


@pytest.mark.parametrize("target", [["cascade"], ["triton", "--repository", "models"]])
def test_exports_that_read_a_model_do_not_set_windows(windowed, target):
    command = ["export", str(windowed), "--to", *target, "--set", "windows.join=first"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, ConfigError)
    assert "windows.* change a model, which this export only reads" in str(done.exception)


def test_a_text_of_any_length_is_predicted(windowed):
    words = " ".join(f"word{number}" for number in range(20_000))
    ((_, prediction),) = predict_run(windowed, [Example(text=words)])
    assert prediction.windows > 2_000
    assert not prediction.truncated
