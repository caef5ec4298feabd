"""Tiny classifiers with random weights, saved by transformers as other programs save them."""

import json
from pathlib import Path

import pytest

from pipework.benchmarks.studies.imports import save_classifier


def edit_json(path: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes a key."""
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory) -> Path:
    """A BERT with three labels; read it only."""
    return save_classifier(tmp_path_factory.mktemp("source") / "bert")


@pytest.fixture
def rows_file(tmp_path):
    """A function that writes a tsv file of rows."""

    def write(*rows: str, header: str = "text\tlabel", name: str = "rows.tsv") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in (header, *rows)))
        return path

    return write
