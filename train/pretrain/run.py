"""A pretraining run from config to manifest."""

import shutil
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from pipework.data.readers import Format
from pipework.errors import ConfigError
from pipework.machine import collect_and_trim
from pipework.run_folder.manifest import Data, Identity, Manifest, Model, write_manifest
from pipework.tasks.evaluation import Evaluation
from pipework.text.encoding import TextEncoder
from pipework.text.special_tokens import SpecialTokens
from pipework.train.data.batches import StepBatches
from pipework.train.data.tokenizer import check_unknown_rate
from pipework.train.data_report.data_report import UNLIMITED, DataReport, cached_report
from pipework.train.loop import resume
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.distributed import World
from pipework.train.loop.loop import LoopSpec, TrainingRun
from pipework.train.loop.losses import PrecomputedLosses
from pipework.train.loop.resume import CheckpointManager, Snapshot, TrainState
from pipework.train.loop.step import Stepper, StepSpec
from pipework.train.loop.training import make_stepper, run_loop
from pipework.train.model import checkpoint
from pipework.train.model.classifier import unused_parameters
from pipework.train.model.families import checkpoint_activations
from pipework.train.model.fast_dropout import use_fast_dropout
from pipework.train.prepare import PreparedRun, input_record, splits, vocabulary
from pipework.train.pretrain.corpus import Corpus, PackingOptions, corpus
from pipework.train.pretrain.evaluator import PretrainEvaluator
from pipework.train.pretrain.model import PretrainModel, build_pretrain_model, open_pretrain_model
from pipework.train.pretrain.model_inputs import Masker, PackedLoader
from pipework.train.pretrain.report import PretrainPage, write_page
from pipework.train.pretrain.segments import unspaced_ids
from pipework.train.run_folder import CONFIG

MASKED, MASKED_AND_ORDER = "masked", "masked+order"  # names of the heads in a manifest


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainLoaders:
    """The batch loaders and corpora of train and dev."""

    train: PackedLoader
    dev: PackedLoader
    corpus: Corpus
    dev_corpus: Corpus


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainSetup:
    """A model with everything needed to train it."""

    model: PretrainModel
    loaders: PretrainLoaders
    windows: StepBatches
    stepper: Stepper


def pretrain(
    run: TrainingRun, prepared: PreparedRun, snapshot: Snapshot | None
) -> tuple[Manifest, tuple[str, ...]]:
    """Pretrain in every process of the world; return the same as `train.finalize.finalize`.

    Raises:
        PipeError: as `train.run.train`.
    """
    world = run.world
    report = world.lead(lambda: _data_report(run, prepared))
    for finding in report.findings:
        run.logger.log_text(f"data: {finding}")
        run.progress.note(f"data: {finding}")
    setup = make_setup(run, prepared)
    loaders = setup.loaders
    loop = LoopSpec(
        model=setup.model,
        windows=setup.windows,
        stepper=setup.stepper,
        evaluator=PretrainEvaluator(loaders.dev, world=world, progress=run.progress),
    )
    state = run_loop(run, loop, prepared.fingerprint, snapshot)
    del setup, loop
    collect_and_trim()
    return world.lead(lambda: _finalize(run, prepared, loaders, report, state))


def make_setup(run: TrainingRun, prepared: PreparedRun) -> PretrainSetup:
    """Return an initial model, ready for the first step.

    Raises:
        PipeError: as `train.run.train`.
    """
    settings, model = run.config.train, _model(run, prepared)
    loaders = _loaders(run, prepared, model)
    rows = loaders.corpus
    # Rows are full, so they have about the same number of masked tokens: the mean over rows is
    # proportional to the mean over tokens.
    tokens = len(rows.ids) * run.config.pretrain.mask_rate / len(rows)
    model.scales = (1 / tokens, len(rows) / max(1, rows.pairs))
    for name in unused_parameters(model, loaders.train.inputs(np.array([0]))):
        model.get_parameter(name).requires_grad_(False)
    windows = StepBatches(
        rows.lengths,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        seed=settings.seed,
        numbered=True,
    )
    step = StepSpec(
        model=model, layers=model.layers(), loader=loaders.train, losses=PrecomputedLosses()
    )
    stepper = make_stepper(run, step, windows.per_epoch)
    return PretrainSetup(model=model, loaders=loaders, windows=windows, stepper=stepper)


def _data_report(run: TrainingRun, prepared: PreparedRun) -> DataReport:
    """Return the data report after a check of the share of unknown tokens."""
    config = run.config
    encoder = TextEncoder(
        Tokenizer.from_str(prepared.tokenizer), max_length=UNLIMITED, type_ids=False
    )
    report = cached_report(config.sources(), encoder, prepared.tokenizer, None, run.progress)
    rate = report.splits["train"].unknown_rate
    if rate is not None:
        model_settings = config.model
        check_unknown_rate(
            rate, str(model_settings.vocab or model_settings.name or model_settings.preset)
        )
    return report


def _pairs(run: TrainingRun) -> bool:
    config = run.config
    return config.data.format is Format.DOCUMENTS and config.pretrain.sentence_order


def _model(run: TrainingRun, prepared: PreparedRun) -> PretrainModel:
    config, device = run.config, run.world.device
    model = build_pretrain_model(
        config.model, Tokenizer.from_str(prepared.tokenizer), order=_pairs(run)
    ).to(device)
    if device.type == "cpu":
        use_fast_dropout(model.model)
    if config.train.gradient_checkpointing:
        checkpoint_activations(model.model)
    return model


def _loaders(run: TrainingRun, prepared: PreparedRun, model: PretrainModel) -> PretrainLoaders:
    config, sources = run.config, run.config.sources()
    options = PackingOptions(
        max_length=config.model.max_length,
        row_tokens=config.pretrain.row_tokens,
        pairs=_pairs(run),
    )
    train, dev = run.world.first_on_each_machine(
        lambda: tuple(
            corpus(sources[name], prepared.tokenizer, options, run.progress)
            for name in ("train", "dev")
        )
    )
    seed = config.train.seed

    def loader(rows: Corpus, seed: int) -> PackedLoader:
        return _loader(run, prepared, model, rows, seed)

    return PretrainLoaders(
        train=loader(train, seed), dev=loader(dev, 0), corpus=train, dev_corpus=dev
    )


def _loader(
    run: TrainingRun, prepared: PreparedRun, model: PretrainModel, rows: Corpus, seed: int
) -> PackedLoader:
    tokenizer = Tokenizer.from_str(prepared.tokenizer)
    vocabulary_ids = vocabulary(prepared.tokenizer, model.padding)
    if vocabulary_ids.mask_id == vocabulary_ids.padding.pad_id:
        message = "the tokenizer has no mask token ([MASK] or <mask>)"
        raise ConfigError(message, "use the tokenizer of a masked language model")
    ordinary = np.setdiff1d(list(tokenizer.get_vocab().values()), vocabulary_ids.special_ids)
    masker = Masker(
        settings=run.config.pretrain,
        mask_id=vocabulary_ids.mask_id,
        ordinary=ordinary,
        unspaced_V=unspaced_ids(tokenizer),
    )
    return PackedLoader(
        rows,
        special_tokens=SpecialTokens.of(tokenizer),
        masker=masker,
        padding=vocabulary_ids.padding,
        seed=seed,
        device=run.world.device,
    )


def _finalize(
    run: TrainingRun,
    prepared: PreparedRun,
    loaders: PretrainLoaders,
    report: DataReport,
    state: TrainState,
) -> tuple[Manifest, tuple[str, ...]]:
    """Promote the best weights to the checkpoint, score them, and write the manifest last."""
    out, config = run.out, run.config
    checkpoint.promote(CheckpointManager(out, config.train.keep).best(state.best_step), out)
    model = open_pretrain_model(out / checkpoint.FOLDER).to(run.world.device)
    checkpoint.add_tokenizer(out, input_record(out, config, model.padding))
    alone = World(rank=0, size=1, local_rank=0, device=run.world.device, control=None)
    with exact_float32():
        evaluator = PretrainEvaluator(loaders.dev, world=alone, progress=run.progress)
        evaluation = evaluator.evaluate(model, None)
    failures: tuple[str, ...] = ()
    if evaluation.score <= 0:
        rate = f"train.learning_rate (now {config.train.learning_rate:g})"
        failures = (f"dev {evaluation.metric} is {evaluation.score:.3f}: change {rate}",)
    manifest = _manifest(run, prepared, model, report, evaluation, failures)
    scored = (*evaluation.scores.items(), *evaluation.losses.items())
    summary = ", ".join(f"{name} {value:.4f}" for name, value in scored)
    run.logger.log_text(f"best dev at step {state.best_step}: {summary}")
    if config.train.report:
        page = PretrainPage(
            manifest=manifest,
            config=(out / CONFIG).read_text(encoding="utf-8"),
            report=report,
            evaluation=evaluation,
            corpus=loaders.corpus,
        )
        write_page(out, page)
    write_manifest(out, manifest)
    shutil.rmtree(out / resume.FOLDER, ignore_errors=True)
    return manifest, failures


def _manifest(
    run: TrainingRun,
    prepared: PreparedRun,
    model: PretrainModel,
    report: DataReport,
    evaluation: Evaluation,
    failures: tuple[str, ...],
) -> Manifest:
    config, out = run.config, run.out
    return Manifest(
        identity=Identity.new(out, config.train.seed),
        task=prepared.task,
        input=input_record(out, config, model.padding),
        model=Model(
            family=str(model.config.model_type),
            head=MASKED if model.order is None else MASKED_AND_ORDER,
            base=config.model.name,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            dtype="float32",
            checkpoint=checkpoint.records(out),
            kept=checkpoint.kept_records(out),
        ),
        data=Data(
            reading=config.sources()["train"].read_options(),
            splits=splits(config, report),
            findings=(*report.findings, *failures),
            metrics={"dev": evaluation.metrics()},
        ),
    )
