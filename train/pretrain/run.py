"""A pretraining run from config to manifest: the wiring."""

import shutil
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from pipework.data.readers import Format
from pipework.errors import ConfigError
from pipework.memory import give_back
from pipework.run_folder.manifest import Data, Manifest, Model, write_manifest
from pipework.scoring.evaluation import Evaluation
from pipework.text.encoding import TextEncoder
from pipework.text.special_tokens import Frame
from pipework.train.data.batches import Windows
from pipework.train.data.tokenizer import check_unknown_rate
from pipework.train.data_report.data_report import WHOLE, DataReport, cached_report
from pipework.train.description import identity, input_record, splits
from pipework.train.loop import resume
from pipework.train.loop.determinism import exact_products
from pipework.train.loop.distributed import World
from pipework.train.loop.losses import AsTheyAre
from pipework.train.loop.resume import Keeper, Snapshot, Standing
from pipework.train.loop.sanity import findings
from pipework.train.loop.step import Stepper
from pipework.train.loop.training import Run, learn, make_stepper
from pipework.train.model import checkpoint
from pipework.train.model.classifier import unreached
from pipework.train.model.families import checkpoint_activations
from pipework.train.model.fast_dropout import quicken
from pipework.train.prepare import Prepared, vocabulary
from pipework.train.pretrain.corpus import Corpus, Laying, corpus
from pipework.train.pretrain.evaluator import PretrainJudge
from pipework.train.pretrain.masking import Masker
from pipework.train.pretrain.model import Pretrainer, build_pretrainer, open_pretrainer
from pipework.train.pretrain.model_inputs import PackedFeed
from pipework.train.pretrain.report import PretrainPage, write_page
from pipework.train.pretrain.segments import unspaced_ids
from pipework.train.run_folder import CONFIG

MASKED, MASKED_AND_ORDER = "masked", "masked+order"  # the heads, as a manifest names them


@dataclass(frozen=True, kw_only=True, eq=False)
class Feeds:
    """The rows of train and of dev."""

    train: PackedFeed
    dev: PackedFeed
    corpus: Corpus
    dev_corpus: Corpus


@dataclass(frozen=True, kw_only=True, eq=False)
class Learning:
    """A model with all that teaches it."""

    model: Pretrainer
    feeds: Feeds
    windows: Windows
    stepper: Stepper


def pretrain(
    run: Run, found: Prepared, snapshot: Snapshot | None
) -> tuple[Manifest, tuple[str, ...]]:
    """Pretrain, in every process of the world; return what `train.finish.finish` returns.

    Raises:
        PipeError: as `train.run.train`.
    """
    world = run.world
    report = world.lead(lambda: _look(run, found))
    for finding in report.findings:
        run.journal.say(f"data: {finding}")
        run.progress.note(f"data: {finding}")
    ready = learning(run, found)
    feeds, judge = ready.feeds, PretrainJudge(ready.feeds.dev, world=world, progress=run.progress)
    standing = learn(
        run, found.fingerprint, ready.model, ready.windows, ready.stepper, judge, snapshot
    )
    del ready
    give_back()
    return world.lead(lambda: _finish(run, found, feeds, report, standing))


def learning(run: Run, found: Prepared) -> Learning:
    """Return a model at its beginning, ready for its first step.

    Raises:
        PipeError: as `train.run.train`.
    """
    settings, model = run.config.train, _model(run, found)
    feeds = _feeds(run, found, model)
    rows = feeds.corpus
    # Rows are full, so each has about the same to tell: a mean over rows is one over tokens.
    tokens = len(rows.ids) * run.config.pretrain.mask_rate / len(rows)
    model.scales = (1 / tokens, len(rows) / max(1, rows.pairs))
    for name in unreached(model, feeds.train.inputs(np.array([0]))):
        model.get_parameter(name).requires_grad_(False)
    windows = Windows(
        rows.lengths,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        seed=settings.seed,
        numbered=True,
    )
    stepper = make_stepper(
        run,
        model,
        model.layers(),
        feed=feeds.train,
        losses=AsTheyAre(),
        per_epoch=windows.per_epoch,
    )
    return Learning(model=model, feeds=feeds, windows=windows, stepper=stepper)


def _look(run: Run, found: Prepared) -> DataReport:
    """Return the data report, and refuse a vocabulary that does not know the texts."""
    config = run.config
    encoder = TextEncoder(Tokenizer.from_str(found.tokenizer), max_length=WHOLE, type_ids=False)
    report = cached_report(config.sources(), encoder, found.tokenizer, None, run.progress)
    rate = report.splits["train"].unknown_rate
    if rate is not None:
        given = config.model
        check_unknown_rate(rate, str(given.vocab or given.name or given.preset))
    return report


def _pairs(run: Run) -> bool:
    config = run.config
    return config.data.format is Format.DOCUMENTS and config.pretrain.sentence_order


def _model(run: Run, found: Prepared) -> Pretrainer:
    config, device = run.config, run.world.device
    model = build_pretrainer(
        config.model, Tokenizer.from_str(found.tokenizer), order=_pairs(run)
    ).to(device)
    if device.type == "cpu":
        quicken(model.model)
    if config.train.gradient_checkpointing:
        checkpoint_activations(model.model)
    return model


def _feeds(run: Run, found: Prepared, model: Pretrainer) -> Feeds:
    config, sources = run.config, run.config.sources()
    laying = Laying(
        max_length=config.model.max_length,
        row_tokens=config.pretrain.row_tokens,
        pairs=_pairs(run),
    )
    train, dev = run.world.first_on_each_machine(
        lambda: tuple(
            corpus(sources[name], found.tokenizer, laying, run.progress)
            for name in ("train", "dev")
        )
    )
    seed = config.train.seed

    def feed(rows: Corpus, seed: int) -> PackedFeed:
        return _feed(run, found, model, rows, seed)

    return Feeds(train=feed(train, seed), dev=feed(dev, 0), corpus=train, dev_corpus=dev)


def _feed(run: Run, found: Prepared, model: Pretrainer, rows: Corpus, seed: int) -> PackedFeed:
    tokenizer = Tokenizer.from_str(found.tokenizer)
    known = vocabulary(found.tokenizer, model.padding)
    if known.mask_id == known.padding.pad_id:
        message = "the tokenizer has no token that hides another, [MASK] or <mask>"
        raise ConfigError(message, "pretrain with the tokenizer of a masked language model")
    ordinary = np.setdiff1d(list(tokenizer.get_vocab().values()), known.special_ids)
    masker = Masker(
        settings=run.config.pretrain,
        mask_id=known.mask_id,
        ordinary=ordinary,
        unspaced_V=unspaced_ids(tokenizer),
    )
    return PackedFeed(
        rows,
        frame=Frame.of(tokenizer),
        masker=masker,
        padding=known.padding,
        seed=seed,
        device=run.world.device,
    )


def _finish(
    run: Run, found: Prepared, feeds: Feeds, report: DataReport, standing: Standing
) -> tuple[Manifest, tuple[str, ...]]:
    """Make the best weights the checkpoint, score it afresh, and write the manifest last."""
    out, config = run.out, run.config
    checkpoint.take(Keeper(out, config.train.keep).best(standing.best_step), out)
    model = open_pretrainer(out / checkpoint.FOLDER).to(run.world.device)
    alone = World(rank=0, size=1, local_rank=0, device=run.world.device, control=None)
    with exact_products():
        judge = PretrainJudge(feeds.dev, world=alone, progress=run.progress)
        evaluation = judge.evaluate(model, None)
    poor = findings(standing.losses, evaluation, config.train.learning_rate)
    manifest = _manifest(run, found, model, report, evaluation, poor)
    scored = (*evaluation.scores.items(), *evaluation.losses.items())
    said = ", ".join(f"{name} {value:.4f}" for name, value in scored)
    run.journal.say(f"best dev at step {standing.best_step}: {said}")
    if config.train.report:
        page = PretrainPage(
            manifest=manifest,
            config=(out / CONFIG).read_text(encoding="utf-8"),
            report=report,
            evaluation=evaluation,
            corpus=feeds.corpus,
        )
        write_page(out, page)
    write_manifest(out, manifest)
    shutil.rmtree(out / resume.FOLDER, ignore_errors=True)
    return manifest, poor


def _manifest(
    run: Run,
    found: Prepared,
    model: Pretrainer,
    report: DataReport,
    evaluation: Evaluation,
    poor: tuple[str, ...],
) -> Manifest:
    config, out = run.config, run.out
    return Manifest(
        identity=identity(out, config),
        task=found.task,
        input=input_record(out, config, model.padding),
        model=Model(
            family=str(model.config.model_type),
            head=MASKED if model.order is None else MASKED_AND_ORDER,
            base=config.model.name,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            dtype="float32",
            checkpoint=checkpoint.records(out),
        ),
        data=Data(
            reading=config.sources()["train"].reading(),
            splits=splits(config, report),
            findings=(*report.findings, *poor),
            metrics={"dev": evaluation.metrics()},
        ),
    )
