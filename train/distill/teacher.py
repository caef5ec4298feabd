"""Teachers: finished runs that another run distils from, and a cache of their logits.

The cache is next to the token caches. Its name is a digest of the teacher, the rows and the
arithmetic. Temperature and weight are applied later, so the cache does not depend on them.

Shapes: N rows, C classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.errors import CheckFailedError, ConfigError
from pipework.progress import Progress
from pipework.run_folder.files import MANIFEST_FILE, write_atomically
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.tasks.task import Task
from pipework.text.encoding import open_encoder
from pipework.train.data.batches import BATCH_TOKENS, token_batches
from pipework.train.data.disk_cache import (
    allocate_file,
    cache_entry,
    cache_key,
    digest_values,
    source_content,
)
from pipework.train.data.token_cache import COMPLETE, TokenSet, open_token_cache
from pipework.train.loop.step import has_bf16_matmul
from pipework.train.model.checkpoint_engine import CheckpointEngine, open_reference

LOGITS = "logits"
FLOAT_BYTES = 4
CHUNK = 1 << 20  # rows
Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A finished run whose logits the student learns from."""

    run: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The name of the run folder; a run of several seeds includes the parent folder."""
        is_seed = self.run.name.startswith("seed-")
        return f"{self.run.parent.name}/{self.run.name}" if is_seed else self.run.name

    @property
    def digest(self) -> str:
        """A digest of weights, tokenizer and input limits, which determine its logits."""
        return digest_values((self.manifest.model.checkpoint, self.manifest.input))


def open_teachers(runs: Iterable[Path], task: Task, fields: Sequence[str]) -> tuple[Teacher, ...]:
    """Read the manifests of the teachers; a folder of seeds is expanded to its runs.

    Args:
        runs: the run folders from the settings.
        task: the task of the student.
        fields: the input fields of the student.

    Raises:
        RunFolderError: a folder contains no finished run.
        ConfigError: a teacher has another task, other labels or other input fields.
    """
    seeds = [seed for run in runs for seed in runs_of(run)]
    teachers = tuple(Teacher(run=run, manifest=read_manifest(run)) for run in seeds)
    for teacher in teachers:
        _check(teacher, task, fields)
    return teachers


def runs_of(folder: Path) -> list[Path]:
    """Return the runs of a folder, one for each seed, or the run folder itself."""
    seeds = [] if (folder / MANIFEST_FILE).is_file() else sorted(folder.glob("seed-*/"))
    return seeds or [folder]


def _check(teacher: Teacher, task: Task, fields: Sequence[str]) -> None:
    teacher_task, reads = teacher.manifest.task, teacher.manifest.input.fields
    where = f"train.teacher {teacher.run}"
    if teacher_task.kind != task.kind:
        message = f"{where} has task.kind = {teacher_task.kind}, this run has {task.kind}"
        raise ConfigError(message, "choose a teacher with the same task.kind")
    if teacher_task.labels != task.labels:
        pairs = enumerate(zip_longest(teacher_task.labels, task.labels))
        first, labels = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
        theirs, ours = ("none" if label is None else repr(label) for label in labels)
        message = f"{where} has {theirs} as label {first}, this run has {ours}"
        raise ConfigError(
            message, "set task.labels to the labels of the teacher, in the same order"
        )
    if tuple(reads) != tuple(fields):
        message = f"{where} reads {' and '.join(reads)}, this run reads {' and '.join(fields)}"
        raise ConfigError(message, "set data.columns to the fields that the teacher reads")


def teacher_logits(
    teacher: Teacher, source: Source, device: torch.device, progress: Progress
) -> Logits:
    """Open the logits of a teacher for the rows of a file, float32 [N, C], memory-mapped.

    If they are not cached, they are computed first with the tokenizer and checkpoint of the
    teacher, in batches of similar length, and in bf16 if the device supports it. After an
    interruption the next call continues with the missing rows.

    Raises:
        DataError: the rows cannot be read, or the cache cannot be written.
        RunFolderError: a file of the teacher is missing or has changed.
        CheckFailedError: a logit is not finite.
    """
    encoder = open_encoder(teacher.run, teacher.manifest)
    tokenizer = (teacher.run / teacher.manifest.input.tokenizer.path).read_text(encoding="utf-8")
    # With labels: they can decide which rows are held out or left out.
    tokens = open_token_cache(source, tokenizer, encoder, None, progress)
    shape = (len(tokens), len(teacher.manifest.task.labels))
    autocast = torch.bfloat16 if has_bf16_matmul(device) else None
    arithmetic = (version("torch"), version("transformers"), device.type, autocast)
    key = cache_key(("answers", teacher.digest, *arithmetic, source_content(source)))
    with cache_entry(key, shape[0] * shape[1] * FLOAT_BYTES) as folder:
        if not (folder / COMPLETE).is_file():
            logits_NC = _open_partial(folder / LOGITS, shape)
            engine = open_reference(teacher.run, teacher.manifest, device=device, autocast=autocast)
            progress.note(f"computing logits of the teacher {teacher.name} for {source.path.name}")
            _compute(engine, tokens, logits_NC, progress)
            logits_NC.flush()
            write_atomically(folder / COMPLETE, b"")
        return np.memmap(folder / LOGITS, np.float32, mode="r", shape=shape)


def _open_partial(
    path: Path, shape: tuple[int, int]
) -> "np.memmap[tuple[int, int], np.dtype[np.float32]]":
    """Open the file of logits, which is created if missing; rows of NaN are not computed yet."""
    if not path.is_file():
        partial = path.with_suffix(".partial")
        allocate_file(partial, shape[0] * shape[1] * FLOAT_BYTES)
        empty = np.memmap(partial, np.float32, mode="r+", shape=shape)
        for start in range(0, shape[0], CHUNK):
            empty[start : start + CHUNK] = np.nan
        empty.flush()
        partial.rename(path)
    return np.memmap(path, np.float32, mode="r+", shape=shape)


def _compute(
    engine: CheckpointEngine, tokens: TokenSet, logits_NC: Logits, progress: Progress
) -> None:
    missing = np.flatnonzero(np.isnan(logits_NC[:, 0]))
    order = missing[np.argsort(tokens.lengths[missing], kind="stable")]
    with progress.stage("compute teacher logits", len(order), "rows"):
        for rows in token_batches(tokens.lengths, order, BATCH_TOKENS):
            logits_BC = engine.infer(tokens.encodings(rows)).values
            if not np.isfinite(logits_BC).all():
                message = "a logit of the teacher is not finite"
                raise CheckFailedError(message, "inspect the teacher with: pipe eval TEACHER")
            logits_NC[rows] = logits_BC
            progress.advance(len(rows))
