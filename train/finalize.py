"""Finalize a run: score the best checkpoint, compare it with the baseline, write the manifest."""

from dataclasses import dataclass, replace

from pipework.errors import PipeError
from pipework.run_folder.manifest import Data, Manifest
from pipework.run_folder.teacher_record import TeacherRecord
from pipework.scoring.abstention import RiskCoverage
from pipework.scoring.calibration import both_calibrations
from pipework.train.distill.non_inferiority import compare_with_teachers
from pipework.train.loop.resume import FOLDER as STATE
from pipework.train.model.classifier import Classifier, open_checkpoint
from pipework.train.objectives import target_scale
from pipework.train.report.baseline import Baseline
from pipework.train.report.page import RunPage, write_page
from pipework.train.report.spans import errors_on_dev, span_baseline
from pipework.train.report.verdict import TrainingHistory, Verdict, judge
from pipework.train.run_folder import CONFIG
from pipework.train.run_record import (
    best_weights,
    finish,
    model_record,
    new_manifest,
    promote,
    split_records,
)
from pipework.train.scored_checkpoint import (
    ScoredCheckpoint,
    TrainedRun,
    score,
    shorter_limit,
)

CALIBRATED = "calibrated"  # folder of the calibrated weights, until they are RUN/checkpoint


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The manifest of a run, and its scored checkpoint."""

    manifest: Manifest
    scored: ScoredCheckpoint


def finalize(trained: TrainedRun, baseline: Baseline | None) -> FinishedRun:
    """Promote the best weights to the checkpoint, score them, and write the manifest last."""
    run = trained.run
    best_step = trained.state.best_step
    weights = best_weights(run, trained.state)
    model = open_checkpoint(weights).to(run.world.device)
    scored = score(trained, model)
    if scored.calibration is not None:  # an interrupted run finds the weights without it
        weights = run.out / STATE / CALIBRATED
        model.save(weights)
    promote(run, weights, trained.data.vocabulary.padding)
    baseline = span_baseline(trained, scored) or baseline
    verdict = judge(scored.judged, baseline, _history(trained))
    if verdict.constant.low > 0 and (shorter := shorter_limit(trained, model, scored)):
        verdict = replace(verdict, findings=(*verdict.findings, shorter))
    teacher = _against_teachers(trained, scored)
    lines = (verdict.sentence, *([] if teacher is None else [f"{teacher}"]), *verdict.findings)
    in_training = trained.state.best or scored.evaluation
    scores = both_scores(scored.evaluation.score, in_training.score, run.config.train.precision)
    best = f"best dev {scored.task.metric} at step {best_step}: {scores}"
    for line in (best, *lines):
        run.logger.log_text(line)
    manifest = _manifest(trained, scored, model, baseline, verdict, teacher)
    if run.config.train.report and (trained.task.baseline or baseline is not None):
        run.logger.confusion(best_step, scored.evaluation)
        _write_page(trained, scored, manifest, baseline, verdict)
    finish(run, manifest)
    if not verdict.failed:
        for line in lines:
            run.progress.note(line)
    return FinishedRun(manifest=manifest, scored=scored)


def _against_teachers(trained: TrainedRun, scored: ScoredCheckpoint) -> TeacherRecord | None:
    try:
        return compare_with_teachers(trained, scored.judged)
    except PipeError as error:  # the run can be completed without the comparison
        trained.run.progress.note(f"no comparison with the teachers: {error}")
        return None


def both_scores(score: float, in_training: float, precision: str) -> str:
    """Return the score of a checkpoint, and the score in training if rounding made it differ."""
    if f"{score:.4f}" == f"{in_training:.4f}":
        return f"{score:.4f}"
    return f"{score:.4f} in float32, {in_training:.4f} in training, train.precision={precision}"


def _history(trained: TrainedRun) -> TrainingHistory:
    settings = trained.run.config.train
    all_steps = trained.per_epoch * settings.epochs
    shortened = settings.max_steps is not None and settings.max_steps < all_steps
    return TrainingHistory(
        losses=trained.state.losses,
        best_step=trained.state.best_step,
        step=trained.state.step,
        shortened_from=all_steps if shortened else None,
        learning_rate=settings.learning_rate,
        class_weights=settings.class_weights,
    )


def _write_page(
    trained: TrainedRun,
    scored: ScoredCheckpoint,
    manifest: Manifest,
    baseline: Baseline | None,
    verdict: Verdict,
) -> None:
    out = trained.run.out
    examples = list(trained.run.config.sources()["dev"].rows())
    truth = trained.data.dev.truth
    judged = scored.judged
    page = RunPage(
        manifest=manifest,
        config=(out / CONFIG).read_text(encoding="utf-8"),
        report=trained.report,
        evaluation=scored.evaluation,
        calibrations=both_calibrations(
            scored.task, judged.outputs, judged.truth, scored.calibration
        ),
        risk=RiskCoverage.of_task(scored.task, judged.outputs, judged.truth),
        logits_NC=scored.outputs.values,
        truth=truth,
        baseline=baseline,
        verdict=verdict,
        worst_errors=errors_on_dev(trained, scored, examples),
    )
    write_page(out, page)


def _manifest(
    trained: TrainedRun,
    scored: ScoredCheckpoint,
    model: Classifier,
    baseline: Baseline | None,
    verdict: Verdict,
    teacher: TeacherRecord | None,
) -> Manifest:
    run = trained.run
    config = run.config
    family, head = str(model.config.model_type), config.model.head
    scales = {
        "target_scale": target_scale(trained.task, trained.data.train.truth),
        "calibration": scored.calibration,
    }
    record = model_record(run, model, family=family, head=head).model_copy(update=scales)
    linear = verdict.linear
    data = Data(
        reading=config.sources()["train"].read_options(),
        splits=split_records(run, trained.report, keep=config.data.keep_rows),
        findings=(*trained.report.findings, *verdict.findings),
        verdict=verdict.sentence,
        failures=(verdict.sentence, *verdict.findings) if verdict.failed else (),
        metrics=scored.metrics,
        baseline=None if linear is None or baseline is None else baseline.record(*linear.interval),
        teacher=teacher,
    )
    return new_manifest(run, scored.task, trained.data.vocabulary.padding, record, data)
