"""Train a classifier: a pretrained encoder or a preset, whole or only its head."""

from pipework.train.distill.losses import all_teacher_logits, distillation_losses
from pipework.train.inputs import TokenSets, open_loaders, open_token_sets
from pipework.train.loop.evaluator import ClassifierEvaluator
from pipework.train.loop.loop import LoopSpec, TrainingRun
from pipework.train.loop.losses import Losses, label_losses, standardised
from pipework.train.loop.resume import Snapshot, TrainState
from pipework.train.loop.step import StepSpec
from pipework.train.loop.training import run_loop
from pipework.train.model.classifier import Classifier, build, padding_of
from pipework.train.model.families import reinitialise
from pipework.train.model.fast_dropout import use_fast_dropout
from pipework.train.objectives import OBJECTIVES, class_weights, target_scale
from pipework.train.prepare import PreparedRun, checked_data_report
from pipework.train.scored_checkpoint import TrainedRun


def train_classifier(
    run: TrainingRun, prepared: PreparedRun, snapshot: Snapshot | None
) -> TrainedRun:
    """Train a classifier in every process of the world, from the beginning or a checkpoint.

    Raises:
        PipeError: as `train.run.train`.
    """
    settings = run.config.model
    device = run.world.device
    model = build(settings, prepared.loaded, prepared.task)
    reinitialise(model.encoder, run.config.train.reinit_layers)
    type_ids = padding_of(model).type_ids
    encoder = prepared.encoder(settings.max_length, type_ids=type_ids)
    report = checked_data_report(run, prepared, encoder)
    data = open_token_sets(run, prepared, model)
    scale = target_scale(prepared.task, data.train.truth)
    if scale is not None:
        model.standardise(scale)
    model.to(device)
    if device.type == "cpu":
        use_fast_dropout(model.model)
    state, per_epoch = _run_loop(run, prepared, model, data, snapshot)
    return TrainedRun(
        run=run,
        task=prepared.task,
        data=data,
        report=report,
        state=state,
        per_epoch=per_epoch,
        teachers=prepared.teachers,
    )


def _run_loop(
    run: TrainingRun,
    prepared: PreparedRun,
    model: Classifier,
    data: TokenSets,
    snapshot: Snapshot | None,
) -> tuple[TrainState, int]:
    """Train from the beginning or a checkpoint; return the final state and steps per epoch."""
    loaders = open_loaders(run, model, data)
    if run.config.train.gradient_checkpointing:
        model.gradient_checkpointing()
    losses = _losses(run, prepared, data)
    if model.target_scale is not None:
        losses = standardised(losses, model.target_scale)
    step = StepSpec(
        model=loaders.module, layers=model.layers(), loader=loaders.train, losses=losses
    )
    evaluator = ClassifierEvaluator(
        loader=loaders.dev,
        truth=data.dev.truth,
        task=prepared.task,
        world=run.world,
        progress=run.progress,
    )
    loop = LoopSpec(model=model, step=step, evaluator=evaluator)
    return run_loop(run, loop, prepared.fingerprint, snapshot)


def _losses(run: TrainingRun, prepared: PreparedRun, data: TokenSets) -> Losses:
    """Return the losses of the train rows; with teachers, compute their logits first."""
    config, world, task = run.config, run.world, prepared.task
    settings = config.train
    objective = OBJECTIVES[type(task)]
    weights_C = class_weights(settings.class_weights, data.train.truth, task)
    if weights_C is not None:
        weights_C = weights_C.to(world.device)
    truth = data.train.truth
    lengths_N = data.train.lengths if task.rows_per_token else None
    hard_losses = label_losses(objective, truth, settings.label_smoothing, weights_C, lengths_N)
    if not prepared.teachers:
        return hard_losses
    unlabelled = config.data.unlabelled_source()
    sources = [config.sources()["train"], *([] if unlabelled is None else [unlabelled])]
    teacher_logits = all_teacher_logits(prepared.teachers, sources, world, run.progress)
    names = ", ".join(teacher.name for teacher in prepared.teachers)
    run.logger.log_text(
        f"training on the logits of {names} in addition to the labels of {len(data.train):,} rows"
    )
    return distillation_losses(
        hard_losses,
        teacher_logits,
        labelled=len(data.train),
        objective=objective,
        settings=settings,
    )
