"""A training run from config to manifest: the wiring, and the run folder it fills."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from pipework import __version__
from pipework.commit import git_commit
from pipework.encoding import TextEncoder
from pipework.errors import CheckFailedError, RunFolderError
from pipework.evaluation import Evaluation, evaluate, infer_all
from pipework.examples import Source
from pipework.lock import sole_writer
from pipework.manifest import (
    FILE_NAME,
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    Split,
    Task,
    file_digest,
    record_file,
    write_manifest,
)
from pipework.padding import Padding
from pipework.progress import Progress
from pipework.settings import dump_settings
from train import checkpoint
from train.config import Config
from train.data import TokenSet, token_set
from train.determinism import seed_everything
from train.evaluate import CheckpointEngine
from train.health import findings
from train.journal import LOG, MARK, Journal, last_line
from train.labels import class_labels
from train.loop import Loop, Vocabulary
from train.model import Classifier, build, open_checkpoint, uses_type_ids
from train.report import DataReport, cached_report
from train.tokenizer import SPECIAL, make_tokenizer

CONFIG, TOKENIZER = "config.toml", "tokenizer.json"
PARTIAL = (f"{FILE_NAME}.partial", f"{checkpoint.FOLDER}.partial")
OWN = (MARK, CONFIG, TOKENIZER, LOG, checkpoint.FOLDER, *PARTIAL)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of before its first step."""

    task: Task
    report: DataReport
    model: Classifier
    vocabulary: Vocabulary
    splits: dict[str, Split]
    train: TokenSet
    dev: TokenSet


def train(config: Config, out: Path, progress: Progress) -> Manifest:
    """Train as the config says, into the run folder `out`.

    The manifest is written last: until then no other stage takes the folder for a run.

    Raises:
        PipeError: for a config, data or a folder that cannot be used, before the first step.
        CheckFailedError: the loss is not a number; or, with the folder complete, nothing was
            learned.
    """
    sources = config.data.splits(config.task.kind, config.train.seed)
    labels = class_labels(config.task.labels, sources["train"])
    with run_folder(out, progress), Journal(out) as journal:
        (out / CONFIG).write_text(dump_settings(config), encoding="utf-8")
        random = seed_everything(config.train.seed)
        parts = _parts(config, out, sources, labels, progress)
        for finding in parts.report.findings:
            journal.say(f"data: {finding}")
            progress.note(f"data: {finding}")
        loop = Loop(
            parts.model,
            config.train,
            parts.vocabulary,
            parts.task,
            journal=journal,
            progress=progress,
        )
        save = partial(checkpoint.save, parts.model, out)
        outcome = loop.run(parts.train, parts.dev, random, save)
        evaluation = _final(out, parts, progress)
        poor = findings(outcome.losses, evaluation, config.train.learning_rate)
        manifest = _manifest(config, out, sources, parts, (evaluation, poor))
        write_manifest(out, manifest)
        journal.say(f"best dev {evaluation.metric} at step {outcome.best_step}: {evaluation.score}")
    if poor:
        message = f"the run is complete but learned nothing: {'; '.join(poor)}"
        raise CheckFailedError(message, f"look at it with: pipe eval {out}")
    return manifest


@contextmanager
def run_folder(out: Path, progress: Progress) -> Iterator[None]:
    """Make the run folder and keep others out of it, clearing what an unfinished run left.

    Raises:
        RunFolderError: it holds a finished run or files that no run wrote, another process
            writes there, or it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{out} cannot be made: {error.strerror}"
        raise RunFolderError(message, "choose another --out") from error
    with sole_writer(out):
        _clear(out, progress)
        yield


def _clear(out: Path, progress: Progress) -> None:
    if (out / FILE_NAME).exists():
        message = f"{out} already holds a finished run"
        raise RunFolderError(message, "choose another --out, or delete the folder")
    left = sorted(path.name for path in out.iterdir())
    foreign = [name for name in left if name not in OWN and not name.startswith("events.")]
    if left and (foreign or MARK not in left):
        message = f"{out} holds files that no run wrote: {', '.join((foreign or left)[:3])}"
        raise RunFolderError(message, "choose an empty or a new folder for --out")
    if left:
        step = last_line(out).get("step", 0)
        progress.note(f"{out} holds an unfinished run (stopped after step {step}): starting again")
    for name in sorted(left, key=MARK.__eq__):  # the mark last, so that a kill leaves it
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _parts(
    config: Config,
    out: Path,
    sources: Mapping[str, Source],
    labels: tuple[str, ...],
    progress: Progress,
) -> Parts:
    tokenizer = make_tokenizer(config.model, sources["train"])
    model = build(config.model, tokenizer, labels)
    task = Task(kind=config.task.kind, labels=labels, metric=config.task.metric_for(labels))
    model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(out / TOKENIZER))
    encoder = TextEncoder(
        tokenizer, max_length=config.model.max_length, type_ids=uses_type_ids(model)
    )
    digests = {name: file_digest(source.path) for name, source in sources.items()}
    report = cached_report(sources, encoder, out / TOKENIZER, labels, progress)
    train_set, dev_set = (
        token_set(sources[name], out / TOKENIZER, encoder, task, progress)
        for name in ("train", "dev")
    )
    return Parts(
        task=task,
        report=report,
        model=model,
        vocabulary=_vocabulary(tokenizer, model),
        splits={
            name: Split(
                path=str(source.path),
                sha256=digests[name],
                rows=report.splits[name].rows,
                part=source.part,
            )
            for name, source in sources.items()
        },
        train=train_set,
        dev=dev_set,
    )


def _vocabulary(tokenizer: Tokenizer, model: Classifier) -> Vocabulary:
    special = [
        index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special
    ]
    special += [i for i in map(tokenizer.token_to_id, SPECIAL) if i is not None]
    masks = [tokenizer.token_to_id(token) for token in ("[MASK]", "<mask>")]
    pad_id = int(model.config.pad_token_id or 0)
    mask_id = next((mask for mask in masks if mask is not None), pad_id)
    padding = Padding(pad_id=pad_id, type_ids=uses_type_ids(model))
    return Vocabulary(
        padding=padding, mask_id=mask_id, special_ids=tuple(sorted({*special, pad_id}))
    )


def _final(out: Path, parts: Parts, progress: Progress) -> Evaluation:
    """Score the kept checkpoint, loaded afresh, in float32: what later stages compare with."""
    model = open_checkpoint(out / checkpoint.FOLDER).to(parts.model.device)
    engine = CheckpointEngine(model, padding=parts.vocabulary.padding)
    dev = parts.dev
    logits_NC = infer_all(engine, dev.encodings(range(len(dev))), progress)
    return evaluate(logits_NC, dev.labels, parts.task)


def _manifest(
    config: Config,
    out: Path,
    sources: Mapping[str, Source],
    parts: Parts,
    result: tuple[Evaluation, Sequence[str]],
) -> Manifest:
    evaluation, poor = result
    return Manifest(
        identity=Identity(
            name=out.absolute().name,
            created_at=datetime.now(UTC),
            pipework=__version__,
            git_commit=git_commit(Path(__file__).parents[1]),
            seed=config.train.seed,
        ),
        task=parts.task,
        input=Input(
            fields=config.data.fields,
            tokenizer=record_file(out, out / TOKENIZER),
            max_length=config.model.max_length,
            pad_id=parts.vocabulary.padding.pad_id,
            type_ids=uses_type_ids(parts.model),
        ),
        model=_model(config, out, parts),
        data=Data(
            reading=sources["train"].reading(),
            splits=parts.splits,
            findings=(*parts.report.findings, *poor),
            metrics={"dev": evaluation.metrics()},
        ),
    )


def _model(config: Config, out: Path, parts: Parts) -> Model:
    return Model(
        family=str(parts.model.config.model_type),
        head=config.model.head,
        base=config.model.name,
        parameters=sum(parameter.numel() for parameter in parts.model.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(out),
    )
