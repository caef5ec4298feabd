"""BERT and ALBERT presets of the same width: `python -m pipework.benchmarks.studies.presets --out FILE`.

What is measured are the steps of a pretraining run, on made-up Chinese texts of about 20
characters in packed rows: forward pass, backward pass and update of the weights. Families take
turns, so that a machine which others use is unfair to none.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.presets_results import PresetSpeed, PresetsResult
from pipework.errors import PipeError
from pipework.progress import Silent
from pipework.train.config.model import Family, Preset
from pipework.train.config.run_config import Config
from pipework.train.data.batches import Rows
from pipework.train.data.tokenizer import SPECIAL
from pipework.train.loop.distributed import World
from pipework.train.loop.step import autocast_type
from pipework.train.loop.training import Run
from pipework.train.model.presets import size
from pipework.train.prepare import prepare
from pipework.train.pretrain.run import Learning, learning
from pipework.train.report.run_log import Unheard

FIRST_CHARACTER, CHARACTERS, TEXTS = 0x4E00, 8000, 8000
TEXT_FILE = "texts.txt"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    steps: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the presets asked for and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.presets", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    parser.add_argument("--presets", nargs="+", choices=[*Preset], default=[*Preset][:3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    given = parser.parse_args(arguments)
    plan = Plan(rounds=given.rounds, steps=given.steps)
    try:
        check_writable(given.out)
        result = measure([Preset(one) for one in given.presets], plan)
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    for one in result.presets:
        line = (
            f"{one.preset} {one.family}: {one.parameters:,} parameters, {one.speed:,.0f} tokens/s"
        )
        sys.stdout.write(f"{line}\n")
    return 0


def measure(presets: Sequence[Preset], plan: Plan) -> PresetsResult:
    """Return parameters and speed of presets in both families.

    Raises:
        PipeError: the cache cannot be written.
    """
    found: list[PresetSpeed] = []
    with tempfile.TemporaryDirectory() as folder:
        _write_texts(Path(folder) / TEXT_FILE)
        config = _config(Path(folder), presets[0], Family.BERT)
        for preset in presets:
            runs = {one: _run(Path(folder), preset, one) for one in Family}
            found += _side_by_side(preset, runs, plan)
    precision = autocast_type(config.train, World.alone().device)
    return PresetsResult(
        vocabulary=config.model.vocab_size,
        row_tokens=config.pretrain.row_tokens,
        rows_per_step=config.train.batch_size,
        steps_per_round=plan.steps,
        precision=str(precision or torch.float32).removeprefix("torch."),
        presets=tuple(found),
        command=("python", "-m", "pipework.benchmarks.studies.presets", "--presets", *presets),
        provenance=provenance(),
    )


def _write_texts(path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(14, 27, TEXTS).tolist()
    # Each character is there, so that the vocabulary is as large as is wanted.
    codes = FIRST_CHARACTER + np.arange(sum(lengths)) % CHARACTERS
    characters = iter("".join(map(chr, random.permutation(codes).tolist())))
    path.write_text("\n".join("".join(islice(characters, length)) for length in lengths))


def _config(folder: Path, preset: Preset, family: Family) -> Config:
    return Config.model_validate(
        {
            "task": {"kind": "pretrain"},
            "data": {"root": folder, "train": TEXT_FILE, "format": "text", "dev_rows": 50},
            "model": {
                "preset": preset,
                "family": family,
                "vocab_size": CHARACTERS + len(SPECIAL),
                "max_length": 64,
            },
        }
    )


def _run(folder: Path, preset: Preset, family: Family) -> Run:
    config, world = _config(folder, preset, family), World.alone()
    return Run(out=folder, config=config, world=world, progress=Silent(), journal=Unheard())


def _side_by_side(preset: Preset, runs: dict[Family, Run], plan: Plan) -> Iterator[PresetSpeed]:
    """Let families learn in turns, and yield what was seen of each."""
    courses = {family: _Course(run) for family, run in runs.items()}
    for course in courses.values():
        course.learn(3)  # memory is taken, and kernels are chosen
    speeds: dict[Family, list[float]] = {family: [] for family in courses}
    for _ in range(plan.rounds):
        for family, course in courses.items():
            speeds[family].append(course.learn(plan.steps))
    layers, width = size(preset)
    for family, course in courses.items():
        encoder = course.ready.model.encoder
        yield PresetSpeed(
            preset=preset,
            family=family,
            layers=layers,
            width=width,
            parameters=sum(one.numel() for one in encoder.parameters()),
            embeddings=sum(one.numel() for one in encoder.embeddings.parameters()),
            tokens_per_s=tuple(round(speed, 1) for speed in speeds[family]),
        )


class _Course:
    """One model that learns, so many steps at a time."""

    def __init__(self, run: Run) -> None:
        self.ready: Learning = learning(run, prepare(run.config, run.progress))
        self._windows: Iterator[list[Rows]] = self.ready.windows.start(0)

    def learn(self, steps: int) -> float:
        """Take steps and return the tokens learned from in a second, special ones included."""
        lengths, tokens = self.ready.feeds.corpus.lengths, 0
        self.ready.model.train()
        start = time.perf_counter()
        for window in islice(self._windows, steps):
            self.ready.stepper.take(window)
            tokens += sum(int(lengths[rows % len(lengths)].sum()) for rows in window)
        return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
