"""Fit a linear model: as a run of its own, or as the baseline of another run.

Shapes: N rows, C classes, F features.
"""

import shutil
import time
from dataclasses import dataclass, replace

from pipework.errors import ConfigError
from pipework.progress import NullProgress, Progress
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.run_config import Config
from pipework.train.data.token_cache import TokenSet
from pipework.train.finalize import finalize
from pipework.train.inputs import open_token_sets
from pipework.train.linear.fit import method
from pipework.train.linear.model import fit, new_model
from pipework.train.loop.distributed import World
from pipework.train.loop.loop import TrainingRun
from pipework.train.loop.resume import CheckpointManager, TrainState
from pipework.train.model.classifier import Classifier, padding_of
from pipework.train.prepare import PreparedRun, checked_data_report
from pipework.train.report.baseline import FOLDER, Baseline
from pipework.train.report.run_log import NullLogger
from pipework.train.run_folder import TOKENIZER, run_folder
from pipework.train.scored_checkpoint import TrainedRun


@dataclass(frozen=True, kw_only=True)
class FittedRun:
    """A linear model and its run.

    Attributes:
        trained: the run, whose best weights are the model.
        rows: number of train rows that the model was fitted to, of `all_rows`.
        seconds: time to compute the features and the weights.
    """

    trained: TrainedRun
    rows: int
    all_rows: int
    seconds: float


def linear_run(run: TrainingRun, prepared: PreparedRun) -> TrainedRun:
    """Fit a linear model to the train rows of a run with the preset `linear`; in one process.

    Raises:
        ConfigError: the kind of task has no linear model, or the table would be too large.
        PipeError: as `train.run.train`.
    """
    model = new_model(run.config, prepared.task, prepared.loaded)
    encoder = prepared.encoder(run.config.model.max_length, type_ids=False)
    report = checked_data_report(run, prepared, encoder)
    trained = TrainedRun(
        run=run,
        task=prepared.task,
        data=open_token_sets(run, prepared, model),
        report=report,
        state=TrainState(fingerprint=prepared.fingerprint),
        per_epoch=0,
    )
    return _fit(trained, model, run.progress).trained


def linear_baseline(parent: TrainedRun, prepared: PreparedRun) -> Baseline | None:
    """Fit a linear model to the tokens of another run, as a complete run in RUN/linear.

    Returns:
        The model and its outputs, or None if the table of a linear model would be too large.
    """
    config, out, progress = _config(parent), parent.run.out / FOLDER, parent.run.progress
    try:
        model = new_model(config, prepared.task, prepared.loaded)
    except ConfigError as error:
        progress.note(f"no linear baseline: {error}")
        return None
    shutil.rmtree(out, ignore_errors=True)  # of a run that was interrupted after this step
    with run_folder(out, config, progress, resume=False):
        (out / TOKENIZER).write_text(prepared.tokenizer, encoding="utf-8")
        run = TrainingRun(
            out=out,
            config=config,
            world=World.alone(),
            progress=NullProgress(),
            logger=NullLogger(),
        )
        vocabulary = replace(parent.data.vocabulary, padding=padding_of(model))
        train, dev = map(_without_types, (parent.data.train, parent.data.dev))
        data = replace(parent.data, train=train, dev=dev, unlabelled=None, vocabulary=vocabulary)
        trained = replace(parent, run=run, data=data, state=TrainState(), per_epoch=0, teachers=())
        fitted = _fit(trained, model, progress)
        scored = finalize(fitted.trained, None).scored
    return Baseline(
        name=f"{method(parent.task)} on tokens and token bigrams",
        split=scored.judged.split,
        evaluation=scored.task.evaluate(scored.judged.outputs, scored.judged.truth),
        outputs=scored.judged.outputs,
        task=scored.task,
        rows=fitted.rows,
        all_rows=fitted.all_rows,
        seconds=fitted.seconds,
    )


def _config(parent: TrainedRun) -> Config:
    """Return the config of RUN/linear."""
    config = parent.run.config
    vocab = parent.run.out.resolve() / TOKENIZER
    length = config.model.max_length
    model = ModelSettings(preset=Preset.LINEAR, vocab=vocab, max_length=length)
    data = config.data.model_copy(update={"unlabelled": None})
    fitted = {"teacher": (), "seeds": (), "report": False, "reinit_layers": 0}
    if config.train.class_weights != "balanced":
        fitted["class_weights"] = "equal"
    train = config.train.model_copy(update=fitted)
    return config.model_copy(update={"model": model, "data": data, "train": train})


def _without_types(tokens: TokenSet) -> TokenSet:
    """Return the rows as a family without type ids reads them."""
    return replace(tokens, type_ids=tokens.type_ids[:0])


def _fit(trained: TrainedRun, model: Classifier, progress: Progress) -> FittedRun:
    """Fit a model, and save it as the best weights of its run."""
    run, tokens, step = trained.run, trained.data.train, trained.state.best_step
    start = time.perf_counter()
    balanced = run.config.train.class_weights == "balanced"
    rows = fit(model, tokens, trained.task, progress, balanced=balanced)
    manager = CheckpointManager(run.out, run.config.train.keep)
    manager.save_weights(model, manager.best(step))
    run.logger.scalars(step, "train", {"rows": rows})
    seconds = time.perf_counter() - start
    return FittedRun(trained=trained, rows=rows, all_rows=len(tokens), seconds=seconds)
