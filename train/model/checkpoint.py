"""The checkpoint folders of a run, which transformers opens too: the best, and kept steps."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from pipework.run_folder.files import FileRecord, record_file
from pipework.run_folder.manifest import Input
from pipework.text.encoding import truncates_left

FOLDER = "checkpoint"
STEPS = "steps"  # the folder of the checkpoints of `train.keep_every`
ROLES = {
    "cls_token": ("[CLS]", "<s>", "<cls>"),
    "sep_token": ("[SEP]", "</s>", "<sep>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def promote(weights: Path, run: Path) -> None:
    """Rename a folder of weights to RUN/checkpoint, unless it is that folder."""
    final = run / FOLDER
    if weights != final:
        shutil.rmtree(final, ignore_errors=True)
        weights.rename(final)


def kept_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step}"


def _kept(run: Path) -> list[Path]:
    folders = (run / STEPS).glob("step-*[0-9]")
    return sorted(folders, key=lambda folder: int(folder.name.partition("-")[2]))


def add_tokenizer(run: Path, model_input: Input) -> None:
    """Write the tokenizer into the checkpoint folders, in the files that transformers reads.

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
        "truncation_side": "left" if truncates_left(tokenizer) else "right",
        **{role: token for role, token in roles.items() if token is not None},
    }
    text = json.dumps(options, indent=2, ensure_ascii=False)
    for folder in (run / FOLDER, *_kept(run)):
        shutil.copyfile(path, folder / "tokenizer.json")
        (folder / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")


def records(run: Path) -> tuple[FileRecord, ...]:
    """Return path and digest of each file of RUN/checkpoint."""
    return _records(run, run / FOLDER)


def kept_records(run: Path) -> dict[str, tuple[FileRecord, ...]]:
    """Return path and digest of each file of the checkpoints of steps, by name."""
    return {folder.name: _records(run, folder) for folder in _kept(run)}


def _records(run: Path, folder: Path) -> tuple[FileRecord, ...]:
    return tuple(record_file(run, path) for path in sorted(folder.iterdir()))
