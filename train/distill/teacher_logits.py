"""What a teacher answers to every row of a file, computed once and kept on disk.

The cache lies beside the token caches, under a digest of the teacher, of the rows and of the
arithmetic. Temperatures and weights are applied later, so they may change without asking again.

Shapes: N rows, C classes.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.errors import CheckFailedError, DataError
from pipework.progress import Progress
from pipework.run_folder.files import sole_writer, write_atomically
from pipework.train.data.batches import BATCH_TOKENS, token_batches
from pipework.train.data.disk_cache import cache_folder, digest, made, name_of, reserve
from pipework.train.data.token_cache import COMPLETE, TokenSet, token_set
from pipework.train.distill.teacher import Teacher
from pipework.train.loop.step import multiplies_bf16
from pipework.train.model.checkpoint_engine import CheckpointEngine, open_reference

LOGITS = "logits"
FLOAT_BYTES = 4
CHUNK = 1 << 20  # rows
Logits = NDArray[np.float32]


def teacher_logits(
    teacher: Teacher, source: Source, device: torch.device, progress: Progress
) -> Logits:
    """Open a teacher's logits for the rows of a file, float32 [N, C], memory-mapped.

    Where they are not kept yet they are computed first, through the teacher's own tokenizer and
    checkpoint, in batches of like lengths and in bf16 where the device multiplies in it. That may
    be interrupted at any time: the next call goes on with the rows that have no answer yet.

    Raises:
        DataError: the rows cannot be read, or the cache cannot be written.
        RunFolderError: a file of the teacher is missing or changed.
        CheckFailedError: an answer is not a number.
    """
    encoder = teacher.encoder()
    tokenizer = (teacher.run / teacher.manifest.input.tokenizer.path).read_text(encoding="utf-8")
    rows = source.unlabelled()
    tokens = token_set(rows, tokenizer, encoder, None, progress)
    shape = (len(tokens), len(teacher.manifest.task.labels))
    autocast = torch.bfloat16 if multiplies_bf16(device) else None
    arithmetic = (version("torch"), version("transformers"), device.type, autocast)
    content = (rows.reading(), rows.part, digest(rows.path))
    folder = made(cache_folder() / name_of(("answers", teacher.digest, *arithmetic, *content)))
    with sole_writer(folder, wait=True):
        if not (folder / COMPLETE).is_file():
            logits_NC = _begun(folder / LOGITS, shape)
            engine = open_reference(teacher.run, teacher.manifest, device=device, autocast=autocast)
            progress.note(f"asking the teacher {teacher.name} about {source.path.name}")
            _ask(engine, tokens, logits_NC, progress)
            logits_NC.flush()
            write_atomically(folder / COMPLETE, b"")
    return np.memmap(folder / LOGITS, np.float32, mode="r", shape=shape)


def _begun(
    path: Path, shape: tuple[int, int]
) -> "np.memmap[tuple[int, int], np.dtype[np.float32]]":
    """Open the file of answers; what is not a number there was not asked yet."""
    if not path.is_file():
        partial = path.with_suffix(".partial")
        try:
            reserve(partial, shape[0] * shape[1] * FLOAT_BYTES)
        except OSError as error:
            message = f"a teacher's answers in {path.parent} cannot be written: {error.strerror}"
            raise DataError(message, "set PIPEWORK_CACHE to a folder with room") from error
        empty = np.memmap(partial, np.float32, mode="r+", shape=shape)
        for start in range(0, shape[0], CHUNK):
            empty[start : start + CHUNK] = np.nan
        empty.flush()
        partial.rename(path)
    return np.memmap(path, np.float32, mode="r+", shape=shape)


def _ask(engine: CheckpointEngine, tokens: TokenSet, logits_NC: Logits, progress: Progress) -> None:
    left = np.flatnonzero(np.isnan(logits_NC[:, 0]))
    order = left[np.argsort(tokens.lengths[left], kind="stable")]
    progress.begin("ask the teacher", len(order), "rows")
    try:
        for rows in token_batches(tokens.lengths, order, BATCH_TOKENS):
            found_BC = engine.infer(tokens.encodings(rows))
            if not np.isfinite(found_BC).all():
                message = "the teacher's answer to a row is not a number"
                raise CheckFailedError(message, "look at it with: pipe eval TEACHER")
            logits_NC[rows] = found_BC
            progress.advance(len(rows))
    finally:
        progress.end()
