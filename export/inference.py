"""Rows in, answers out, by a proven engine or by the checkpoint: what eval and predict share."""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from pipework.data.examples import Example, Source, fitting
from pipework.errors import ConfigError, DataError, PipeError
from pipework.progress import Progress
from pipework.run_folder.files import file_digest, verify_files
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.scoring.evaluation import Engine, Evaluation, evaluate, infer_all, predict_all, truth
from pipework.scoring.predictions import Prediction, decide
from pipework.serve.engines import open_proven
from pipework.text.encoding import TextEncoder

log = logging.getLogger(__name__)


def open_encoder(run: Path, manifest: Manifest) -> TextEncoder:
    """Open the tokenizer of a run, after checking its digest.

    Raises:
        RunFolderError: it is missing or changed.
    """
    given = manifest.input
    verify_files(run, (given.tokenizer,))
    return TextEncoder.open(
        run / given.tokenizer.path, max_length=given.max_length, type_ids=given.type_ids
    )


def evaluate_run(
    run: Path, file: Path | None, split: str, engine: str | None, progress: Progress
) -> Evaluation:
    """Score the checkpoint, or an engine by name, on a split, or on `file` if that is given.

    The file is read with the columns and the format that the run was trained with.

    Raises:
        ConfigError: the run has no such split.
        PipeError: for a file, a folder or an engine that cannot be read.
    """
    manifest = read_classifier(run)
    if file is None:
        source = split_source(run, manifest, split)
    else:
        source = Source.of(manifest.data.reading, file)
    examples = list(source.rows())
    found = truth(examples, manifest.task, str(source.path))
    encodings = open_encoder(run, manifest).encode(examples)
    with open_answering(run, manifest, engine, checkpoint=engine is None) as opened:
        return evaluate(infer_all(opened, encodings, progress), found, manifest.task)


def split_source(run: Path, manifest: Manifest, split: str) -> Source:
    """Return the rows of a split, whose file must be the one that the run was trained with.

    Raises:
        ConfigError: the run has no such split.
        DataError: the file is missing or changed.
    """
    if split not in manifest.data.splits:
        message = f"{run} was trained without a split {split!r}"
        raise ConfigError(message, f"it has {', '.join(manifest.data.splits)}")
    recorded = manifest.data.splits[split]
    path = Path(recorded.path)
    if not path.is_file():
        message = f"{path} is missing: the {split} file that {run} was trained with"
        raise DataError(message, "put it back, or name a file: pipe eval RUN FILE")
    if file_digest(path) != recorded.sha256:
        message = f"{path} is no longer the {split} file that {run} was trained with"
        raise DataError(message, "put it back, or name the file: pipe eval RUN FILE")
    return Source.of(manifest.data.reading, path, recorded.part)


def open_answering(
    run: Path, manifest: Manifest, name: str | None = None, *, checkpoint: bool
) -> Engine:
    """Open the checkpoint, or the proven engine of that name, or the first that can answer here.

    Raises:
        RunFolderError: what is to be opened does not hold.
        MissingDependencyError: a package that it needs is not installed.
    """
    if not checkpoint:
        return open_proven(run, manifest, name)
    from pipework.train.model.checkpoint_engine import open_reference  # noqa: PLC0415  (torch, which a server need not have)

    return open_reference(run, manifest)


def open_here(run: Path, manifest: Manifest) -> Engine:
    """Open the engine to serve here, or the checkpoint where no engine can answer.

    Raises:
        PipeError: what is to be opened does not hold, or neither can be.
    """
    if not manifest.engines:
        return open_answering(run, manifest, checkpoint=True)
    try:
        return open_answering(run, manifest, checkpoint=False)
    except PipeError as reason:
        log.warning("no engine can answer here, so the checkpoint does: %s", reason)
        try:
            return open_answering(run, manifest, checkpoint=True)
        except ModuleNotFoundError:
            raise reason from None


def predict_run(run: Path, examples: Iterable[Example]) -> Iterator[tuple[Example, Prediction]]:
    """Answer examples in order, by the engine to serve here, or the checkpoint if none can.

    Raises:
        InputError: an input that is not what the model takes, as a pair for one of single texts.
    """
    manifest = read_classifier(run)
    encoder = open_encoder(run, manifest)
    with open_here(run, manifest) as engine:
        checked = (
            fitting(example, manifest.input, f"input {number}")
            for number, example in enumerate(examples, start=1)
        )
        for chunk, logits_NC in predict_all(engine, encoder, checked):
            yield from zip(chunk, decide(logits_NC, manifest.task), strict=True)


def unlabelled(run: Path, file: Path) -> Iterator[Example]:
    """Read a file with the columns that the run was trained with, whether or not it has labels."""
    return Source.of(read_classifier(run).data.reading, file).unlabelled().rows()


def write_predictions(
    answers: Iterable[tuple[Example, Prediction]], out: Path, progress: Progress
) -> int:
    """Write answers to a .tsv or .jsonl file, whole or not at all, and return their number.

    Raises:
        ConfigError: another suffix.
    """
    if out.suffix not in (".tsv", ".jsonl"):
        message = f"{out}: expected a file ending in .tsv or .jsonl"
        raise ConfigError(message)
    if out.is_dir() or not out.parent.is_dir():
        message = f"{out} cannot be written: expected a file in a folder that exists"
        raise ConfigError(message)
    partial = out.with_name(out.name + ".partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as stream:
            for example, prediction in answers:
                stream.write(format_prediction(example, prediction, out.suffix) + "\n")
                count += 1
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    progress.note(f"{count} predictions in {out}")
    return count


def format_prediction(example: Example, prediction: Prediction, suffix: str = ".tsv") -> str:
    """Return one answer as a line of tsv (label, score, texts) or jsonl (all scores too).

    With several labels the first field holds them all and the second their scores, each separated
    by a comma; a regression has its number and no label.
    """
    texts = [text for text in (example.text, example.text_pair) if text is not None]
    if suffix == ".jsonl":
        fields = {name: getattr(example, name) for name in ("text", "text_pair", "entities")}
        given = {name: value for name, value in fields.items() if value is not None}
        return json.dumps({**given, **asdict(prediction)}, ensure_ascii=False)
    flat = (" ".join(text.split()) for text in texts)
    return "\t".join((*prediction.words(), *flat))
