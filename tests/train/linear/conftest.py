"""Runs with a linear model."""

import random

import pytest

from pipework.progress import NullProgress
from pipework.train.config.run_config import load_config
from pipework.train.run import train

WORDS = {"food": ("soup", "bread", "salt"), "sport": ("goal", "race", "team")}


def topic_rows(count, generator):
    for _ in range(count):
        label = generator.choice(("food", "sport"))
        words = generator.choices(WORDS[label], k=2) + generator.choices(("the", "a", "we"), k=3)
        generator.shuffle(words)
        yield " ".join(words), label


@pytest.fixture
def topics():
    """Rows of two topics, by split."""
    generator = random.Random(0)
    return {name: list(topic_rows(60, generator)) for name in ("train", "dev", "test")}


@pytest.fixture
def fitted(tmp_path):
    """A function that fits a linear model to rows, by split, and returns its run folder."""
    number = 0

    def run(rows, *settings, header=("text", "label"), preset="linear"):
        nonlocal number
        number += 1
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for name, part in rows.items():
            lines = ["\t".join(map(str, row)) for row in (header, *part)]
            (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        report = [f"train.report={str(preset == 'tiny').lower()}"]
        files = [f"data.{name}={name}.tsv" for name in rows]
        pair = ["data.columns.text_pair=text_pair"] if "text_pair" in header else []
        path = folder / "c.toml"
        path.write_text('[data]\ntrain = "train.tsv"\n[model]\nmax_length = 32\nvocab_size = 300\n')
        config = load_config(
            str(path), [f"model.preset={preset}", *report, *files, *pair, *settings]
        )
        train(config, folder / "run", NullProgress())
        return folder / "run"

    return run
