"""The end of a run: the kept checkpoint is scored, described and made part of the run folder."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from pipework import __version__
from pipework.commit import git_commit
from pipework.evaluation import Evaluation, evaluate, infer_all
from pipework.manifest import (
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    Split,
    Task,
    record_file,
    write_manifest,
)
from pipework.progress import Progress
from train import checkpoint, state
from train.cache import digest
from train.config import Config
from train.evaluate import CheckpointEngine
from train.health import findings
from train.journal import Unheard
from train.judge import settled
from train.model import Classifier, open_checkpoint
from train.prepare import Rows
from train.report import DataReport
from train.run_folder import TOKENIZER
from train.state import Keeper, Standing


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


def finish(ended: Ended, journal: Unheard, progress: Progress) -> tuple[Manifest, tuple[str, ...]]:
    """Make the best weights the checkpoint, and write the manifest last.

    Returns:
        The manifest, and what says that nothing was learned: empty for a sound run.
    """
    keeper = Keeper(ended.out, ended.config.train.keep)
    checkpoint.take(keeper.best(ended.standing.best_step), ended.out)
    model = open_checkpoint(ended.out / checkpoint.FOLDER).to(ended.device)
    task, evaluation = _score(model, ended, progress)
    rate = ended.config.train.learning_rate
    poor = findings(ended.standing.losses, evaluation, rate)
    manifest = _manifest(ended, model, task, evaluation, poor)
    journal.say(f"best dev {task.metric} at step {ended.standing.best_step}: {evaluation.score}")
    write_manifest(ended.out, manifest)
    shutil.rmtree(ended.out / state.FOLDER, ignore_errors=True)
    return manifest, poor


def _score(model: Classifier, ended: Ended, progress: Progress) -> tuple[Task, Evaluation]:
    """Score the kept checkpoint, loaded afresh, in float32: what later stages compare with."""
    engine = CheckpointEngine(model, padding=ended.rows.vocabulary.padding)
    dev = ended.rows.dev
    logits_NC = infer_all(engine, dev.encodings(range(len(dev))), progress)
    task = settled(ended.task, logits_NC, dev.truth)
    return task, evaluate(logits_NC, dev.truth, task)


def _manifest(
    ended: Ended, model: Classifier, task: Task, evaluation: Evaluation, poor: Sequence[str]
) -> Manifest:
    out, config, padding = ended.out, ended.config, ended.rows.vocabulary.padding
    sources = config.sources()
    return Manifest(
        identity=Identity(
            name=out.absolute().name,
            created_at=datetime.now(UTC),
            pipework=__version__,
            git_commit=git_commit(Path(__file__).parents[1]),
            seed=config.train.seed,
        ),
        task=task,
        input=Input(
            fields=config.data.fields,
            tokenizer=record_file(out, out / TOKENIZER),
            max_length=config.model.max_length,
            pad_id=padding.pad_id,
            type_ids=padding.type_ids,
            pad_type_id=padding.pad_type_id,
            pad_left=padding.left,
        ),
        model=_model(config, out, model),
        data=Data(
            reading=sources["train"].reading(),
            splits={
                name: Split(
                    path=str(source.path),
                    sha256=digest(source.path),
                    rows=ended.report.splits[name].rows,
                    part=source.part,
                )
                for name, source in sources.items()
            },
            findings=(*ended.report.findings, *poor),
            metrics={"dev": evaluation.metrics()},
        ),
    )


def _model(config: Config, out: Path, model: Classifier) -> Model:
    return Model(
        family=str(model.config.model_type),
        head=config.model.head,
        base=config.model.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(out),
    )
