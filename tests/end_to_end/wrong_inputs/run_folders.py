"""Wrong run folders and files of `pipe show` and `pipe eval`, and changes of run folders."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.wrong_inputs.wrong_input import DEV, WrongInput, refused

Change = Callable[[Path], object]


def run(command: str, change: Change | None, error: str, code: int = 2) -> WrongInput:
    """Return a command whose run is changed first."""

    def prepare(folder: Path) -> None:
        if change is not None:
            change(folder / ("ENGINE" if "ENGINE" in command else "RUN"))

    return WrongInput(command=command, error=error, code=code, change=prepare)


def manifest(**changes: object) -> Change:
    """Return a change of values in manifest.json, by key; `a__b` is the key b in the section a."""

    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        content = json.loads(path.read_text())
        for key, value in changes.items():
            *sections, last = key.split("__")
            section = content
            for name in sections:
                section = section[int(name) if name.isdecimal() else name]
            section[last] = value
        path.write_text(json.dumps(content))

    return edit


def written(name: str, content: str | bytes) -> Change:
    """Return a change that writes a file."""
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def removed(name: str) -> Change:
    """Return a change that removes a file or a folder."""

    def remove(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def flipped(pattern: str) -> Change:
    """Return a change of a byte in the middle of the first file of a name."""

    def flip(folder: Path) -> None:
        path = next(folder.rglob(pattern))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return flip


def locked(folder: Path) -> None:
    """Lock a run, as another process does; the lock ends with the test process."""
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)


def pretrained(folder: Path) -> None:
    """Make the manifest of a run that of a pretraining."""
    task = {"kind": "pretrain", "labels": [], "metric": "masked_accuracy"}
    manifest(task=task)(folder)


MANIFESTS = {
    "an absent run": refused(
        "show absent", "absent is not a folder; expected a run folder of `pipe train` or `import`"
    ),
    "an empty manifest": run(
        "show RUN",
        written("manifest.json", ""),
        "RUN/manifest.json is not a manifest of schema 6: the file: Invalid JSON: EOF "
        "while parsing a value at line 1 column 0",
    ),
    "a manifest without labels": run(
        "show RUN",
        manifest(task__labels=[]),
        "RUN/manifest.json is not a manifest of schema 6: task: Value error, expected "
        "distinct labels, and none for pretraining; found ()",
    ),
    "a manifest with a label twice": run(
        "show RUN",
        manifest(task__labels=["a"] * 8),
        "RUN/manifest.json is not a manifest of schema 6: task: Value error, expected "
        "distinct labels, and none for pretraining; found ('a', 'a', 'a', 'a', 'a', "
        "'a', 'a', 'a')",
    ),
    "a manifest with a length of 0": run(
        "predict RUN rain",
        manifest(input__max_length=0),
        "RUN/manifest.json is not a manifest of schema 6: input.max_length: Input "
        "should be greater than or equal to 1",
    ),
    "a manifest with an unknown engine": run(
        "predict ENGINE rain --engine onnx-fp32",
        manifest(engines__0__format="tflite"),
        "unknown engine format 'tflite'",
    ),
    "a manifest with other labels": run(
        "predict RUN rain",
        manifest(task__labels=list("abcdefgh")),
        "RUN: checkpoint labels ('arts', 'food', 'health', 'money', 'sports', "
        "'technology', 'travel', 'weather') differ from the labels of the manifest",
    ),
    "a page in an absent folder": refused(
        "show RUN --html no/page.html",
        "no/page.html cannot be written: expected a file path in an existing folder",
    ),
}
EVAL = {
    "an unknown split": refused("eval RUN --split validation", "RUN has no split 'validation'"),
    "a file and a split": refused(
        "eval RUN dev.tsv --split dev", "expected a file or --split, found both"
    ),
    "an absent file to evaluate": refused(
        "eval RUN absent.tsv", "absent.tsv cannot be read: No such file or directory"
    ),
    "a file without labels": WrongInput(
        command="eval RUN x.tsv",
        files={"x.tsv": "text\na\n"},
        error="x.tsv:1: no column 'label' (the default name); found text",
    ),
    "labels in another column than in training": WrongInput(
        command="eval RUN x.tsv --columns label=topic",
        files={"x.tsv": "text\tlabel\na\tb\n"},
        error="x.tsv:1: no column 'topic'; found text, label",
    ),
    "columns of a split": refused(
        "eval RUN --split dev --columns text=body", "--columns needs a file"
    ),
    "a file with other labels": WrongInput(
        command="eval RUN dev.tsv",
        files={"dev.tsv": DEV + "a\tnone\n"},
        error="dev.tsv:6 has label 'none', which the model lacks",
    ),
    "a file of one row less than a header": WrongInput(
        command="eval RUN x.tsv", files={"x.tsv": "text\tlabel\n"}, error="x.tsv holds no rows"
    ),
    "an unknown engine": refused(
        "eval ENGINE --engine onnx-int8",
        "run trained has no engine 'onnx-int8'; its engines: onnx-fp32",
    ),
    "a changed checkpoint": run(
        "eval RUN",
        flipped("checkpoint/model.safetensors"),
        "RUN/checkpoint/model.safetensors changed: sha256 DIGEST, expected DIGEST as "
        "in manifest.json",
        3,
    ),
    "a changed tokenizer": run(
        "eval RUN",
        flipped("tokenizer.json"),
        "RUN/tokenizer.json changed: sha256 DIGEST, expected DIGEST as in manifest.json",
        3,
    ),
    "a test file that is gone": run(
        "eval RUN --split test",
        manifest(data__splits__test__path="/nowhere/test.tsv"),
        "/nowhere/test.tsv is missing: the test file that RUN was trained with",
    ),
    "a test file that changed": run(
        "eval RUN --split test",
        manifest(data__splits__test__path="dev.tsv"),
        "dev.tsv has changed since RUN was trained with it as the test file",
    ),
    "an evaluation of a pretraining": run(
        "eval RUN", pretrained, "RUN is of pretraining: it has an encoder and no classifier"
    ),
}
