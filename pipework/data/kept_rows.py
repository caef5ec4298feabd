"""Rows of the data files that a run folder keeps, for an export on a machine without these files.

The parity check needs the dev rows, and static int8 some train rows.
"""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from pipework.data.examples import Example, Source
from pipework.run_folder.files import FileRecord, record_file, verify_files, write_atomically
from pipework.run_folder.manifest import Manifest
from pipework.run_folder.read_options import Format, Reading

FOLDER = "rows"
CALIBRATION_ROWS = 300  # train rows
SEED = 0


def keep_rows(run: Path, split: str, rows: Iterable[Example]) -> FileRecord:
    """Write rows of a split as jsonl into RUN/rows, and return the record of the file."""
    path = run / FOLDER / f"{split}.jsonl"
    path.parent.mkdir(exist_ok=True)
    lines = (json.dumps(_fields(row), ensure_ascii=False) for row in rows)
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    return record_file(run, path)


def _fields(row: Example) -> dict[str, object]:
    fields = {
        "text": row.text,
        "text_pair": row.text_pair,
        "entities": row.entities,
        "label": row.label,
    }
    return {name: value for name, value in fields.items() if value is not None}


def kept_source(run: Path, manifest: Manifest, split: str) -> Source | None:
    """Return the kept rows of a split: all of dev, a sample of train; None if none were kept.

    Raises:
        ChangedFileError: the file is missing or has changed.
    """
    record = manifest.data.splits[split].kept
    if record is None:
        return None
    verify_files(run, (record,))
    reading, input_ = manifest.data.reading, manifest.input
    kept = Reading(
        text_pair="text_pair" if input_.pair else None,
        label=None if reading.label is None else "label",
        format=Format.JSONL,
        header=False,
        entities="entities" if input_.marked else None,
        kind=reading.kind,
    )
    return Source(path=run / record.path, reading=kept)


def sample_evenly(rows: Iterable[Example], count: int, most: int) -> dict[int, Example]:
    """Return up to `most` of `count` rows, sampled evenly, by their row numbers from 1."""
    indices = spread(count, most)
    sampled = set(indices)
    first_rows = islice(rows, max(indices, default=0) + 1)
    return {index + 1: row for index, row in enumerate(first_rows) if index in sampled}


def spread(rows: int, most: int) -> list[int]:
    """Return the sorted indices of up to `most` of `rows` rows; the sample is deterministic."""
    # One random row from each of `most` stretches of equal length, so that both a file sorted by
    # label and a file whose labels alternate give all labels.
    if rows <= most:
        return list(range(rows))
    bounds = np.linspace(0, rows, most + 1).astype(np.int64)
    drawn = np.random.default_rng(SEED).integers(bounds[:-1], bounds[1:])
    return [int(index) for index in drawn]
