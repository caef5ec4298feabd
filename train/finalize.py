"""Finalize a run: score the best checkpoint, compare it with the baseline, write the manifest.

Shapes: N rows of dev, C classes.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.data.kept_rows import CALIBRATION_ROWS, keep_rows, sample_evenly
from pipework.progress import Progress
from pipework.run_folder.manifest import (
    BaselineRecord,
    Data,
    Identity,
    Manifest,
    Model,
    Split,
    write_manifest,
)
from pipework.scoring.evaluation import infer_all, label_array
from pipework.tasks.evaluation import Evaluation, SplitMetrics
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.text.encoding import TextEncoder, token_digest
from pipework.train.config.run_config import Config
from pipework.train.data_report.data_report import DataReport
from pipework.train.data_report.file_stats import leaked_rows
from pipework.train.loop import resume
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.resume import CheckpointManager, TrainState
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import Classifier, open_checkpoint
from pipework.train.objectives import target_scale
from pipework.train.prepare import TokenSets, input_record, splits
from pipework.train.report.linear_baseline import (
    LinearBaseline,
    comparison_split,
    linear_baseline,
)
from pipework.train.report.page import RunPage, write_page
from pipework.train.report.run_log import NullLogger
from pipework.train.report.verdict import ScoredRows, TrainingHistory, Verdict, judge
from pipework.train.report.wrong_predictions import worst_errors
from pipework.train.run_folder import CONFIG, TOKENIZER


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run after its last training step; `per_epoch` is the number of steps of an epoch."""

    out: Path
    config: Config
    task: Task
    data: TokenSets
    report: DataReport
    state: TrainState
    per_epoch: int
    device: torch.device


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredCheckpoint:
    """The best checkpoint on dev.

    Attributes:
        task: the task, with the thresholds chosen on dev.
        model: the record of the model.
        logits_NC: its logits for dev.
        evaluation: its scores on dev.
        tokens: digest of the token ids of dev.
        judged: the rows on which it is judged: test, or else dev.
    """

    task: Task
    model: Model
    logits_NC: NDArray[np.float32]
    evaluation: Evaluation
    tokens: str
    judged: ScoredRows

    @property
    def metrics(self) -> dict[str, SplitMetrics]:
        """The scores for the manifest, by split name."""
        dev = self.evaluation.metrics().model_copy(update={"tokens": self.tokens})
        if self.judged.split == "dev":
            return {"dev": dev}
        test = self.task.evaluate(Outputs.of(self.judged.logits_NC), self.judged.truth)
        return {"dev": dev, self.judged.split: test.metrics()}


def finalize(
    trained: TrainedRun, logger: NullLogger, progress: Progress
) -> tuple[Manifest, tuple[str, ...]]:
    """Promote the best weights to the checkpoint, score them, and write the manifest last.

    Returns:
        The manifest, and what failed: empty for a sound run.
    """
    out, state = trained.out, trained.state
    checkpoint.promote(CheckpointManager(out, trained.config.train.keep).best(state.best_step), out)
    padding = trained.data.vocabulary.padding
    checkpoint.add_tokenizer(out, input_record(out, trained.config, padding))
    scored = _score(trained, progress)
    baseline, verdict = _judge(trained, scored, progress)
    for line in (
        f"best dev {scored.task.metric} at step {state.best_step}: {scored.evaluation.score}",
        verdict.sentence,
        *verdict.findings,
    ):
        logger.log_text(line)
    manifest = _manifest(trained, scored, baseline, verdict)
    if baseline is not None:
        logger.confusion(state.best_step, scored.evaluation)
        _write_page(trained, scored, manifest, baseline, verdict)
    write_manifest(out, manifest)
    shutil.rmtree(out / resume.FOLDER, ignore_errors=True)
    lines = (verdict.sentence, *verdict.findings)
    if verdict.failed:
        return manifest, lines
    for line in lines:
        progress.note(line)
    return manifest, ()


def _score(trained: TrainedRun, progress: Progress) -> ScoredCheckpoint:
    """Reload the best checkpoint and score it in float32, as the reference for later stages."""
    model = open_checkpoint(trained.out / checkpoint.FOLDER).to(trained.device)
    engine = CheckpointEngine(model, padding=trained.data.vocabulary.padding)
    dev, truth = trained.data.dev.encodings(range(len(trained.data.dev))), trained.data.dev.truth
    with exact_float32():
        outputs = infer_all(engine, dev, progress)
    logits_NC = outputs.values
    task = trained.task.with_thresholds(logits_NC, truth)
    return ScoredCheckpoint(
        task=task,
        model=_model(trained, model),
        logits_NC=logits_NC,
        evaluation=task.evaluate(outputs, truth),
        tokens=token_digest(dev),
        judged=_judged_rows(trained, engine, logits_NC, task, progress),
    )


def _judged_rows(
    trained: TrainedRun,
    engine: CheckpointEngine,
    dev_NC: NDArray[np.float32],
    task: Task,
    progress: Progress,
) -> ScoredRows:
    """Return the rows of test, or else those of dev, whose logits are known."""
    sources = trained.config.sources()
    split = comparison_split(sources)
    examples = [*sources[split].rows()]
    logits_NC, truth = dev_NC, trained.data.dev.truth
    if split != "dev":
        truth = label_array(examples, task, str(sources[split].path))
        with exact_float32():
            logits_NC = infer_all(engine, _encoder(trained).encode(examples), progress).values
    leaked_N = np.zeros(len(examples), np.bool_)
    shared = {(pair.earlier, pair.later): pair.rows for pair in trained.report.shared}
    if shared["train", split]:
        leaked_N = leaked_rows(sources["train"], examples)
    return ScoredRows(split=split, logits_NC=logits_NC, truth=truth, task=task, leaked_N=leaked_N)


def _encoder(trained: TrainedRun) -> TextEncoder:
    padding = trained.data.vocabulary.padding
    return TextEncoder.open(
        trained.out / TOKENIZER,
        max_length=trained.config.model.max_length,
        type_ids=padding.type_ids,
    )


def _judge(
    trained: TrainedRun, scored: ScoredCheckpoint, progress: Progress
) -> tuple[LinearBaseline | None, Verdict]:
    """Compare the checkpoint with a linear baseline, if there is a report, and with a constant."""
    settings, sources = trained.config.train, trained.config.sources()
    baseline = linear_baseline(sources, trained.task, progress) if settings.report else None
    all_steps = trained.per_epoch * settings.epochs
    shortened = settings.max_steps is not None and settings.max_steps < all_steps
    history = TrainingHistory(
        losses=trained.state.losses,
        best_step=trained.state.best_step,
        step=trained.state.step,
        shortened_from=all_steps if shortened else None,
        learning_rate=settings.learning_rate,
    )
    return baseline, judge(scored.judged, baseline, history)


def _write_page(
    trained: TrainedRun,
    scored: ScoredCheckpoint,
    manifest: Manifest,
    baseline: LinearBaseline,
    verdict: Verdict,
) -> None:
    examples = list(trained.config.sources()["dev"].rows())
    truth = trained.data.dev.truth
    write_page(
        trained.out,
        RunPage(
            manifest=manifest,
            config=(trained.out / CONFIG).read_text(encoding="utf-8"),
            report=trained.report,
            evaluation=scored.evaluation,
            logits_NC=scored.logits_NC,
            truth=truth,
            baseline=baseline,
            verdict=verdict,
            worst_errors=worst_errors(examples, scored.logits_NC, truth, scored.task),
        ),
    )


def _manifest(
    trained: TrainedRun,
    scored: ScoredCheckpoint,
    baseline: LinearBaseline | None,
    verdict: Verdict,
) -> Manifest:
    config = trained.config
    return Manifest(
        identity=Identity.new(trained.out, config.train.seed),
        task=scored.task,
        input=input_record(trained.out, config, trained.data.vocabulary.padding),
        model=scored.model,
        data=Data(
            reading=config.sources()["train"].read_options(),
            splits=_splits(trained),
            findings=(*trained.report.findings, *verdict.findings),
            verdict=verdict.sentence,
            metrics=scored.metrics,
            baseline=_baseline_record(baseline, verdict),
        ),
    )


def _splits(trained: TrainedRun) -> dict[str, Split]:
    """Return the records of the data files; keep the rows that the export needs."""
    config, out = trained.config, trained.out
    records, sources = splits(config, trained.report), config.sources()
    if not config.data.keep_rows:
        return records
    sample = sample_evenly(sources["train"].rows(), records["train"].rows, CALIBRATION_ROWS)
    kept = {"train": sample.values(), "dev": sources["dev"].rows()}
    return records | {
        name: records[name].model_copy(update={"kept": keep_rows(out, name, rows)})
        for name, rows in kept.items()
    }


def _baseline_record(baseline: LinearBaseline | None, verdict: Verdict) -> BaselineRecord | None:
    if baseline is None or verdict.linear is None:
        return None
    return BaselineRecord(
        name=baseline.name,
        rows=baseline.rows,
        split=baseline.split,
        scores=baseline.evaluation.scores,
        low=verdict.linear.low,
        high=verdict.linear.high,
    )


def _model(trained: TrainedRun, model: Classifier) -> Model:
    return Model(
        family=str(model.config.model_type),
        head=trained.config.model.head,
        base=trained.config.model.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(trained.out),
        kept=checkpoint.kept_records(trained.out),
        target_scale=target_scale(trained.task, trained.data.train.truth),
    )
