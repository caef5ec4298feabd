import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from pipework.data.examples import Example
from pipework.data.splits import split_source
from pipework.errors import CheckFailedError, RunFolderError
from pipework.export.inference import evaluate_run, predict_run
from pipework.progress import NullProgress
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.evaluation import label_array
from pipework.tasks import logit_scale
from pipework.tasks.kinds import Metric
from pipework.text.encoding import TextEncoder
from pipework.train.config.run_config import load_config
from pipework.train.loop.evaluator import ClassifierEvaluator
from pipework.train.loop.resume import CheckpointManager
from pipework.train.model.checkpoint_engine import open_reference
from pipework.train.run import train, train_trial
from tests.train.learning import learn


def published(run, tmp_path):
    """Write a run's checkpoint with its tokenizer as a folder like those of a model hub."""
    base = tmp_path / "base"
    model = AutoModelForSequenceClassification.from_pretrained(run / "checkpoint")
    model.save_pretrained(base)
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(base)
    return base


def weights(run):
    return load_file(run / "checkpoint" / "model.safetensors")


def test_the_run_folder_keeps_its_contract(trained_run):
    manifest = read_manifest(trained_run)
    verify_files(trained_run, (manifest.input.tokenizer, *manifest.model.checkpoint))
    names = {path.name for path in trained_run.iterdir()}
    assert {"manifest.json", "config.toml", "checkpoint", "tokenizer.json", "log.jsonl"} <= names
    assert any(name.startswith("events.") for name in names)
    lines = [json.loads(line) for line in (trained_run / "log.jsonl").read_text().splitlines()]
    assert {"loss", "learning_rate", "examples_per_s", "gradient_norm"} <= lines[0].keys()
    assert any(line["group"] == "dev" for line in lines)


def test_the_final_checkpoint_has_the_best_dev_score(trained_run):
    lines = [json.loads(line) for line in (trained_run / "log.jsonl").read_text().splitlines()]
    best = max(line["accuracy"] for line in lines if line["group"] == "dev")
    assert read_manifest(trained_run).data.metrics["dev"].scores["accuracy"] == best


def test_the_weights_of_every_n_steps_are_kept_and_scored(small, forked, tmp_path):
    config = small("train.keep_every=2", "train.eval_every=2")
    run, whole = tmp_path / "run", tmp_path / "whole"
    learn(config, whole)
    assert forked(config, run, kill_at=6) != [0]
    assert forked(config, run, resume=True) == [0]
    manifest = read_manifest(run)
    assert list(manifest.model.kept) == ["step-2", "step-4", "step-6"]
    logged = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    scores = [line for line in logged if line["group"] == "dev"]
    (best, *others) = (
        [prediction.score for _, prediction in predict_run(run, [Example(text="good")], name)]
        for name in (None, *manifest.model.kept)
    )
    assert best in others
    assert len({*map(tuple, others)}) == 3
    for name, line in zip(manifest.model.kept, scores, strict=True):
        evaluation = evaluate_run(run, None, "dev", name, NullProgress())
        assert evaluation.score == line["accuracy"]
        folder = f"steps/{name}/model.safetensors"
        assert (run / folder).read_bytes() == (whole / folder).read_bytes()
    assert len({file.sha256 for files in manifest.model.kept.values() for file in files}) > 3
    with pytest.raises(RunFolderError, match="no checkpoint 'step-3'; it keeps step-2, step-4"):
        evaluate_run(run, None, "dev", "step-3", NullProgress())
    continued = small(
        f"model.name={run / 'steps' / 'step-2'}", "model.preset=", "train.max_steps=1"
    )
    assert learn(continued, tmp_path / "continued").model.base.endswith("step-2")
    (run / "steps" / "step-4" / "config.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"steps/step-4/config\.json"):
        evaluate_run(run, None, "dev", "step-4", NullProgress())


def test_rows_that_are_also_in_dev_or_test_are_left_out_of_train(small, tmp_path, noting):
    short = ("train.max_steps=2", "data.drop_leaked=true")
    manifest = learn(small(*short), tmp_path / "run", noting)
    # The texts of dev (12 rows) and test (8 rows) are the first of train (40 rows).
    assert manifest.data.splits["train"].rows == 28
    finding = "train: 12 rows left out: also in dev, test or calibration"
    assert manifest.data.findings[0] == finding
    assert f"data: {finding}" in noting.lines
    for split in ("dev", "test"):
        assert evaluate_run(tmp_path / "run", None, split, None, NullProgress()).leaked is None
    rows = split_source(tmp_path / "run", manifest, "train").rows()
    assert next(row.text for row in rows).endswith("number 12")
    few = learn(small(*short, "data.rows=10"), tmp_path / "few")
    assert {name: split.rows for name, split in few.data.splits.items()} == {
        "train": 10,
        "dev": 10,
        "test": 8,
    }


def test_probabilities_are_calibrated_on_rows_of_their_own(small, tmp_path, monkeypatch):
    monkeypatch.setattr(logit_scale, "FEWEST", 20)
    run = tmp_path / "run"
    manifest = learn(small("train.max_steps=2", "data.calibration_rows=24"), run)
    rows = [*split_source(run, manifest, "calibration").rows()]
    assert len(rows) == 24
    texts = {row.text for row in split_source(run, manifest, "train").rows()}
    assert not texts & {row.text for row in rows}
    text = manifest.input
    limits = {"max_length": text.max_length, "type_ids": text.type_ids}
    encoder = TextEncoder.open(run / "tokenizer.json", **limits)
    logits_NC = open_reference(run, manifest).infer(encoder.encode(rows)).values
    truth = label_array(rows, manifest.task, "calibration")
    again = manifest.task.fit_calibration(logits_NC, truth)
    assert again.scale == pytest.approx((1,), rel=1e-3)  # the weights are calibrated
    (scale,) = manifest.model.calibration.scale
    assert scale != pytest.approx(1, rel=0.1)
    off = learn(small("train.max_steps=2", "train.calibrate=false"), tmp_path / "off")
    assert off.model.calibration is None


def test_best_weights_are_saved_only_when_the_dev_score_improves(small, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.9, 0.7, 0.9, 0.95, 0.1])
    saved = []
    real_save, real_evaluate = CheckpointManager.save_weights, ClassifierEvaluator.evaluate

    def save(checkpoints, model, folder):
        saved.append(folder.name)
        real_save(checkpoints, model, folder)

    def evaluate(*arguments):
        score = {Metric.ACCURACY: next(accuracies)}
        return real_evaluate(*arguments).model_copy(update={"scores": score})

    monkeypatch.setattr(CheckpointManager, "save_weights", save)
    monkeypatch.setattr(ClassifierEvaluator, "evaluate", evaluate)
    learn(small("train.eval_every=1"), tmp_path / "run")
    assert saved == ["best-00000001", "best-00000002", "best-00000005"]


def test_a_run_without_improvement_stops_early(small, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.9, 0.7, 0.9, 0.95, 0.1])
    real_evaluate = ClassifierEvaluator.evaluate

    def evaluate(*arguments):
        score = {Metric.ACCURACY: next(accuracies)}
        return real_evaluate(*arguments).model_copy(update={"scores": score})

    monkeypatch.setattr(ClassifierEvaluator, "evaluate", evaluate)
    learn(small("train.eval_every=1", "train.early_stop=2"), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["group"] == "dev"] == [1, 2, 3, 4]


def test_a_learnable_task_is_learned(small, tmp_path):
    manifest = train(small("train.max_steps=60"), tmp_path / "run", NullProgress())
    assert manifest.data.metrics["dev"].scores["accuracy"] == 1


def test_the_same_seed_gives_the_same_weights_and_another_does_not(small, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        learn(small(f"train.seed={seed}"), tmp_path / name)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(np.array_equal(a[key], b[key]) for key in a)
    assert not all(np.array_equal(a[key], c[key]) for key in a)


def test_the_test_split_does_not_affect_the_weights(small, tmp_path):
    learn(small(), tmp_path / "a")
    learn(small(test_rows=30), tmp_path / "b")
    a, b = (weights(tmp_path / name) for name in "ab")
    assert all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    "rows", [1, 9, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (7, 8, 17))]
)
def test_any_number_of_rows_trains(small, tmp_path, rows):
    config = small("train.max_steps=3", rows=max(rows, 2))
    assert learn(config, tmp_path / "run").data.splits["train"].rows == max(rows, 2)


def test_the_scale_of_the_targets_does_not_change_what_a_regression_learns(small, tmp_path):
    predictions = {}
    for factor in (1, 2000):
        config = small("task.kind=regression", "train.max_steps=40", "train.batch_size=8")
        for source in config.sources().values():
            lines = (
                f"{'high' if n % 2 else 'low'} number {n}\t{factor * (n % 2 + 10)}\n"
                for n in range(40)
            )
            source.path.write_text("text\tlabel\n" + "".join(lines))
        run = tmp_path / f"times-{factor}"
        manifest = train(config, run, NullProgress())
        scale = manifest.model.target_scale
        assert (scale.mean, scale.std) == pytest.approx((10.5 * factor, 0.5 * factor))
        assert manifest.data.metrics["dev"].scores["pearson"] > 0.9
        model = AutoModelForSequenceClassification.from_pretrained(run / "checkpoint")
        tokenizer = AutoTokenizer.from_pretrained(run / "checkpoint")
        with torch.inference_mode():
            batch = tokenizer(["high number 3", "low number 8"], padding=True, return_tensors="pt")
            predictions[factor] = model(**batch).logits[:, 0].numpy()
    assert predictions[1] == pytest.approx([11, 10], abs=0.3)
    np.testing.assert_allclose(predictions[2000], 2000 * predictions[1], rtol=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_without_a_manifest(small, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pipework.train.objectives.functional.cross_entropy",
        lambda logits, *_, **__: logits[:, 0] * torch.tensor(float("nan")),
    )
    with pytest.raises(CheckFailedError, match="the loss is nan at step"):
        train(small(), tmp_path / "run", NullProgress())
    assert not (tmp_path / "run" / "manifest.json").exists()
    assert "Traceback" in (tmp_path / "run" / "train.log").read_text()


def test_a_checkpoint_by_name_is_fine_tuned(small, trained_run, tmp_path):
    base = published(trained_run, tmp_path)
    small()
    path = tmp_path / "c.toml"
    path.write_text(path.read_text().replace('preset = "tiny"\n', ""))
    overrides = [f"model.name={base}", "train.max_steps=40"]
    manifest = learn(load_config(str(path), overrides), tmp_path / "run")
    assert manifest.model.base == str(base)
    assert manifest.task.labels == ("0", "1")
    assert manifest.input.type_ids


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("extra", [(), ("train.optimizer_on_cpu=true", "train.accumulate=2")])
def test_a_gpu_learns_in_every_precision(small, tmp_path, precision, extra):
    settings = [f"train.precision={precision}", "train.max_steps=60", *extra]
    manifest = train(small(*settings), tmp_path / "run", NullProgress())
    assert manifest.data.metrics["dev"].scores[Metric.ACCURACY] == 1


def test_a_trial_ends_after_the_evaluation_that_stops_it_and_leaves_test_unscored(small, tmp_path):
    config, shares = small("train.eval_every=2", "train.max_steps=8"), []

    def should_stop(share, evaluation):
        shares.append((share, evaluation.score))
        return share >= 0.5

    state = train_trial(config, tmp_path / "trial", NullProgress(), should_stop)
    assert [share for share, _ in shares] == [0.25, 0.5]
    assert state.step == 4
    assert state.best.score == max(score for _, score in shares)
    assert not (tmp_path / "trial" / "manifest.json").exists()


def test_an_interrupted_trial_resumes_from_its_last_evaluation(small, tmp_path):
    config, shares = small("train.eval_every=2", "train.max_steps=8"), []

    def interrupt(share, _):
        if share == 0.5:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        train_trial(config, tmp_path / "trial", NullProgress(), interrupt)
    train_trial(config, tmp_path / "trial", NullProgress(), lambda share, _: shares.append(share))
    assert shares == [0.5, 0.75, 1.0]
