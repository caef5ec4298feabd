"""The end of a run: the kept checkpoint is scored, compared, described and made part of the run.

Shapes: N rows of dev, C classes.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.progress import Progress
from pipework.run_folder.manifest import Baseline as BaselineRecord
from pipework.run_folder.manifest import Data, Manifest, Model, write_manifest
from pipework.run_folder.task import Task
from pipework.scoring.evaluation import Evaluation, evaluate, infer_all
from pipework.train.config.run_config import Config
from pipework.train.data_report.data_report import DataReport
from pipework.train.description import identity, input_record, splits
from pipework.train.loop import resume
from pipework.train.loop.determinism import exact_products
from pipework.train.loop.evaluator import settled
from pipework.train.loop.resume import Keeper, Standing
from pipework.train.loop.sanity import findings
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import Classifier, open_checkpoint
from pipework.train.prepare import Rows
from pipework.train.report.linear_baseline import Baseline, linear_baseline
from pipework.train.report.page import RunPage, write_page
from pipework.train.report.run_log import Unheard
from pipework.train.report.significance import Outcome, Verdict, verdict
from pipework.train.report.worst_errors import mistakes
from pipework.train.run_folder import CONFIG


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run whose last step is done."""

    out: Path
    config: Config
    task: Task
    rows: Rows
    report: DataReport
    standing: Standing
    device: torch.device


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The kept checkpoint on dev; `task` has what was chosen there, such as thresholds."""

    task: Task
    model: Model
    logits_NC: NDArray[np.float32]
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A linear model on the same rows, and how the checkpoint does beside it."""

    baseline: Baseline
    verdict: Verdict

    def record(self) -> BaselineRecord:
        """Return what a manifest keeps."""
        return BaselineRecord(
            name=self.baseline.name,
            rows=self.baseline.rows,
            scores=self.baseline.evaluation.scores,
            low=self.verdict.low,
            high=self.verdict.high,
        )


def finish(ended: Ended, journal: Unheard, progress: Progress) -> tuple[Manifest, tuple[str, ...]]:
    """Make the best weights the checkpoint, compare it, and write the manifest last.

    Returns:
        The manifest, and what says that nothing was learned: empty for a sound run.
    """
    out, standing = ended.out, ended.standing
    checkpoint.take(Keeper(out, ended.config.train.keep).best(standing.best_step), out)
    scored = _score(ended, progress)
    poor = findings(standing.losses, scored.evaluation, ended.config.train.learning_rate)
    compared = _compare(ended, scored, progress) if ended.config.train.report else None
    said = () if compared is None else (compared.verdict.sentence,)
    metric = scored.task.metric
    for line in (
        f"best dev {metric} at step {standing.best_step}: {scored.evaluation.score}",
        *said,
    ):
        journal.say(line)
    manifest = _manifest(ended, scored, compared, poor)
    if compared is not None:
        progress.note(compared.verdict.sentence)
        journal.confusion(standing.best_step, scored.evaluation)
        _write_page(ended, scored, compared, manifest)
    write_manifest(out, manifest)
    shutil.rmtree(out / resume.FOLDER, ignore_errors=True)
    return manifest, poor


def _score(ended: Ended, progress: Progress) -> Scored:
    """Score the kept checkpoint, loaded afresh, in float32: what later stages compare with."""
    model = open_checkpoint(ended.out / checkpoint.FOLDER).to(ended.device)
    engine = CheckpointEngine(model, padding=ended.rows.vocabulary.padding)
    dev = ended.rows.dev
    with exact_products():
        logits_NC = infer_all(engine, dev.encodings(range(len(dev))), progress)
    task = settled(ended.task, logits_NC, dev.truth)
    evaluation = evaluate(logits_NC, dev.truth, task)
    described = _model(ended, model)
    return Scored(task=task, model=described, logits_NC=logits_NC, evaluation=evaluation)


def _compare(ended: Ended, scored: Scored, progress: Progress) -> Compared:
    sources = ended.config.sources()
    baseline = linear_baseline(sources["train"], sources["dev"], ended.task, progress)
    found = verdict(scored.logits_NC, ended.rows.dev.truth, scored.task, baseline)
    return Compared(baseline=baseline, verdict=found)


def _write_page(ended: Ended, scored: Scored, compared: Compared, manifest: Manifest) -> None:
    examples = list(ended.config.sources()["dev"].rows())
    truth = ended.rows.dev.truth
    write_page(
        ended.out,
        RunPage(
            manifest=manifest,
            config=(ended.out / CONFIG).read_text(encoding="utf-8"),
            report=ended.report,
            evaluation=scored.evaluation,
            logits_NC=scored.logits_NC,
            truth=truth,
            baseline=compared.baseline,
            verdict=compared.verdict,
            mistakes=mistakes(examples, scored.logits_NC, truth, scored.task),
        ),
    )


def _manifest(
    ended: Ended,
    scored: Scored,
    compared: Compared | None,
    poor: tuple[str, ...],
) -> Manifest:
    config = ended.config
    beaten = compared is None or compared.verdict.outcome is Outcome.BETTER
    said = () if beaten or compared is None else (compared.verdict.sentence,)
    return Manifest(
        identity=identity(ended.out, config),
        task=scored.task,
        input=input_record(ended.out, config, ended.rows.vocabulary.padding),
        model=scored.model,
        data=Data(
            reading=config.sources()["train"].reading(),
            splits=splits(config, ended.report),
            findings=(*ended.report.findings, *said, *poor),
            metrics={"dev": scored.evaluation.metrics()},
            baseline=None if compared is None else compared.record(),
        ),
    )


def _model(ended: Ended, model: Classifier) -> Model:
    return Model(
        family=str(model.config.model_type),
        head=ended.config.model.head,
        base=ended.config.model.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(ended.out),
    )
