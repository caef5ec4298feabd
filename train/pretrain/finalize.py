"""Finalize a pretraining run: score the best checkpoint on dev, write report and manifest."""

from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import Data, Manifest
from pipework.tasks.evaluation import Evaluation
from pipework.train.data_report.records import DataReport
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.distributed import World
from pipework.train.loop.loop import TrainingRun
from pipework.train.loop.resume import TrainState
from pipework.train.model import checkpoint
from pipework.train.prepare import PreparedRun
from pipework.train.pretrain.evaluator import PretrainEvaluator
from pipework.train.pretrain.loaders import PretrainLoaders
from pipework.train.pretrain.model import PretrainModel, open_pretrain_model
from pipework.train.pretrain.report import html
from pipework.train.report.curves import PAGE
from pipework.train.run_record import (
    best_weights,
    finish,
    model_record,
    new_manifest,
    promote,
    split_records,
)

MASKED = "masked"  # names of the heads in a manifest
MASKED_AND_ORDER = "masked+order"


def finalize(
    run: TrainingRun,
    prepared: PreparedRun,
    loaders: PretrainLoaders,
    report: DataReport,
    state: TrainState,
) -> Manifest:
    """Promote the best weights to the checkpoint, score them, and write the manifest last."""
    promote(run, best_weights(run, state), loaders.dev.padding)
    model = open_pretrain_model(run.out / checkpoint.FOLDER).to(run.world.device)
    evaluation = _evaluate(run, model, loaders)
    failures: tuple[str, ...] = ()
    if evaluation.score <= 0:
        rate = f"train.learning_rate (now {run.config.train.learning_rate:g})"
        failures = (f"dev {evaluation.metric} is {evaluation.score:.3f}: change {rate}",)
    data = Data(
        reading=run.config.sources()["train"].read_options(),
        splits=split_records(run, report, keep=False),
        findings=(*report.findings, *failures),
        metrics={"dev": evaluation.metrics()},
        failures=failures,
    )
    head = MASKED if model.order is None else MASKED_AND_ORDER
    record = model_record(run, model, family=str(model.config.model_type), head=head)
    manifest = new_manifest(run, prepared.task, model.padding, record, data)
    scored = (*evaluation.scores.items(), *evaluation.losses.items())
    summary = ", ".join(f"{name} {value:.4f}" for name, value in scored)
    run.logger.log_text(f"best dev at step {state.best_step}: {summary}")
    if run.config.train.report:
        page = html(run.out, manifest, report, evaluation, loaders.corpus)
        write_atomically(run.out / PAGE, page.encode())
    finish(run, manifest)
    return manifest


def _evaluate(run: TrainingRun, model: PretrainModel, loaders: PretrainLoaders) -> Evaluation:
    # Only rank 0 evaluates here, so it must not wait for the others.
    with exact_float32():
        evaluator = PretrainEvaluator(
            loader=loaders.dev, world=World.alone(), progress=run.progress
        )
        return evaluator.evaluate(model, None)
