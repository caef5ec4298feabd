"""The parts of a manifest that describe the run, its input and its data files."""

from datetime import UTC, datetime
from pathlib import Path

from pipework import __version__
from pipework.git import CHECKOUT, git_commit
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import Identity, Input, Split
from pipework.text.padding import Padding
from pipework.train.config.run_config import Config
from pipework.train.data.disk_cache import data_file_digest
from pipework.train.data_report.data_report import DataReport
from pipework.train.run_folder import TOKENIZER


def identity(out: Path, config: Config) -> Identity:
    """Return name, time, version, commit and seed of a run."""
    return Identity(
        name=out.absolute().name,
        created_at=datetime.now(UTC),
        pipework=__version__,
        git_commit=git_commit(CHECKOUT),
        seed=config.train.seed,
    )


def input_record(out: Path, config: Config, padding: Padding) -> Input:
    """Return how texts are tokenized and padded before they reach the model."""
    return Input(
        fields=config.data.fields,
        tokenizer=record_file(out, out / TOKENIZER),
        max_length=config.model.max_length,
        pad_id=padding.pad_id,
        type_ids=padding.type_ids,
        pad_type_id=padding.pad_type_id,
        pad_left=padding.left,
    )


def splits(config: Config, report: DataReport) -> dict[str, Split]:
    """Return the data files by split name, with the row counts of the data report."""
    return {
        name: Split(
            path=str(source.path),
            sha256=data_file_digest(source.path),
            rows=report.splits[name].rows,
            part=source.part,
        )
        for name, source in config.sources().items()
    }
