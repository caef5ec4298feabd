"""The checkpoint folder of a run, which transformers opens too."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from pipework.run_folder.files import FileRecord, record_file
from pipework.run_folder.manifest import Input

FOLDER = "checkpoint"
ROLES = {
    "cls_token": ("[CLS]", "<s>", "<cls>"),
    "sep_token": ("[SEP]", "</s>", "<sep>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def promote(weights: Path, run: Path) -> None:
    """Rename a folder of weights to RUN/checkpoint, unless an interrupted run did so before."""
    final = run / FOLDER
    if weights.is_dir():
        shutil.rmtree(final, ignore_errors=True)
        weights.rename(final)


def add_tokenizer(run: Path, model_input: Input) -> None:
    """Write the tokenizer into RUN/checkpoint, in the files that transformers reads.

    Without them AutoTokenizer builds an empty tokenizer for some families.
    """
    path = run / model_input.tokenizer.path
    tokenizer = Tokenizer.from_file(str(path))
    vocabulary = tokenizer.get_vocab()
    roles = {
        role: next((token for token in tokens if token in vocabulary), None)
        for role, tokens in ROLES.items()
    }
    roles["unk_token"] = getattr(tokenizer.model, "unk_token", None)
    roles["pad_token"] = tokenizer.id_to_token(model_input.pad_id)
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model_input.max_length,
        "model_input_names": [
            "input_ids",
            *(["token_type_ids"] if model_input.type_ids else []),
            "attention_mask",
        ],
        "padding_side": "left" if model_input.pad_left else "right",
        **{role: token for role, token in roles.items() if token is not None},
    }
    shutil.copyfile(path, run / FOLDER / "tokenizer.json")
    text = json.dumps(options, indent=2, ensure_ascii=False)
    (run / FOLDER / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")


def records(run: Path) -> tuple[FileRecord, ...]:
    """Return path and digest of each file of RUN/checkpoint."""
    return tuple(record_file(run, path) for path in sorted((run / FOLDER).iterdir()))
