"""Tiny classifiers with random weights, saved by transformers as other programs save them."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from pipework.benchmarks.studies.families import EncoderFamily, SampleRows, tiny

LABELS = ("sport", "money", "weather")


def save_classifier(
    folder: Path, family: EncoderFamily = EncoderFamily.BERT, labels: int = 3, **config: object
) -> Path:
    """Save a model and its tokenizer; `config` are attributes of the config."""
    rows = SampleRows.of(family)
    sizes = tiny(family, rows.tokenizer.get_vocab_size())
    sizes.num_labels = labels
    if labels == len(LABELS):
        sizes.id2label = dict(enumerate(LABELS))
        sizes.label2id = {label: index for index, label in enumerate(LABELS)}
    for name, value in config.items():
        setattr(sizes, name, value)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(sizes).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rows.tokenizer,
        pad_token="[PAD]",
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    tokenizer.save_pretrained(folder)
    return folder


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
