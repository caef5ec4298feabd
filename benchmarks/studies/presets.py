"""Measure BERT and ALBERT presets: `python -m pipework.benchmarks.studies.presets --out FILE`.

The study times pretraining steps (forward, backward, optimizer step) on synthetic Chinese texts of
about 20 characters in packed rows. The families take turns, so that other load on the machine
affects both.
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
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.records.training_results import PresetSpeed, PresetsResult
from pipework.benchmarks.studies.script import report_errors
from pipework.progress import NullProgress
from pipework.run_folder.files import check_writable
from pipework.train.config.model import Preset, PresetFamily
from pipework.train.config.run_config import Config
from pipework.train.data.batches import Rows
from pipework.train.data.tokenizer import SPECIAL_TOKENS
from pipework.train.loop.distributed import World
from pipework.train.loop.loop import TrainingRun
from pipework.train.loop.step import autocast_type
from pipework.train.model.encoder_configs import size
from pipework.train.prepare import prepare
from pipework.train.pretrain.run import PretrainSetup, make_setup
from pipework.train.report.run_log import NullLogger

FIRST_CHARACTER, CHARACTERS, TEXTS = 0x4E00, 8000, 8000
TEXT_FILE = "texts.txt"


@dataclass(frozen=True, kw_only=True)
class PresetsPlan:
    """The number of rounds and the steps per round."""

    rounds: int
    steps: int


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen presets and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.presets", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    parser.add_argument("--presets", nargs="+", choices=[*Preset], default=[*Preset][:3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    options = parser.parse_args(arguments)
    plan = PresetsPlan(rounds=options.rounds, steps=options.steps)
    check_writable(options.out)
    result = measure([Preset(name) for name in options.presets], plan)
    write_result(options.out, result)
    for speed in result.presets:
        size_and_rate = f"{speed.parameters:,} parameters, {speed.speed:,.0f} tokens/s"
        sys.stdout.write(f"{speed.preset} {speed.family}: {size_and_rate}\n")
    return 0


def measure(presets: Sequence[Preset], plan: PresetsPlan) -> PresetsResult:
    """Return parameters and speed of presets in both families.

    Raises:
        PipeError: the cache cannot be written.
    """
    speeds: list[PresetSpeed] = []
    with tempfile.TemporaryDirectory() as folder:
        _write_texts(Path(folder) / TEXT_FILE)
        config = _config(Path(folder), presets[0], PresetFamily.BERT)
        for preset in presets:
            runs = {family: _run(Path(folder), preset, family) for family in PresetFamily}
            speeds += _side_by_side(preset, runs, plan)
    precision = autocast_type(config.train, World.alone().device)
    return PresetsResult(
        vocabulary=config.model.vocab_size,
        row_tokens=config.pretrain.row_tokens,
        rows_per_step=config.train.batch_size,
        steps_per_round=plan.steps,
        precision=str(precision or torch.float32).removeprefix("torch."),
        presets=tuple(speeds),
        command=("python", "-m", "pipework.benchmarks.studies.presets", "--presets", *presets),
        provenance=provenance(),
    )


def _write_texts(path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(14, 27, TEXTS).tolist()
    # Each character occurs, so that the vocabulary reaches the requested size.
    codes = FIRST_CHARACTER + np.arange(sum(lengths)) % CHARACTERS
    characters = iter("".join(map(chr, random.permutation(codes).tolist())))
    path.write_text("\n".join("".join(islice(characters, length)) for length in lengths))


def _config(folder: Path, preset: Preset, family: PresetFamily) -> Config:
    return Config.model_validate(
        {
            "task": {"kind": "pretrain"},
            "data": {"root": folder, "train": TEXT_FILE, "format": "text", "dev_rows": 50},
            "model": {
                "preset": preset,
                "family": family,
                "vocab_size": CHARACTERS + len(SPECIAL_TOKENS),
                "max_length": 64,
            },
        }
    )


def _run(folder: Path, preset: Preset, family: PresetFamily) -> TrainingRun:
    config, world = _config(folder, preset, family), World.alone()
    return TrainingRun(
        out=folder, config=config, world=world, progress=NullProgress(), logger=NullLogger()
    )


def _side_by_side(
    preset: Preset, runs: dict[PresetFamily, TrainingRun], plan: PresetsPlan
) -> Iterator[PresetSpeed]:
    """Train the families in turns; yield the speed of each."""
    sessions = {family: _TrainingSession(run) for family, run in runs.items()}
    for session in sessions.values():
        session.train(3)  # warm-up: memory allocation and kernel selection
    speeds: dict[PresetFamily, list[float]] = {family: [] for family in sessions}
    for _ in range(plan.rounds):
        for family, session in sessions.items():
            speeds[family].append(session.train(plan.steps))
    layers, width = size(preset)
    for family, session in sessions.items():
        encoder = session.ready.model.encoder
        yield PresetSpeed(
            preset=preset,
            family=family,
            layers=layers,
            width=width,
            parameters=sum(weight.numel() for weight in encoder.parameters()),
            embeddings=sum(weight.numel() for weight in encoder.embeddings.parameters()),
            tokens_per_s=tuple(round(speed, 1) for speed in speeds[family]),
        )


class _TrainingSession:
    """A model in training that advances a given number of steps at a time."""

    def __init__(self, run: TrainingRun) -> None:
        self.ready: PretrainSetup = make_setup(run, prepare(run.config, run.progress))
        self._windows: Iterator[list[Rows]] = self.ready.windows.start(0)

    def train(self, steps: int) -> float:
        """Take steps and return the tokens/s of the rows, special tokens included."""
        lengths, tokens = self.ready.loaders.corpus.lengths, 0
        self.ready.model.train()
        start = time.perf_counter()
        for window in islice(self._windows, steps):
            self.ready.stepper.step(window)
            tokens += sum(int(lengths[rows % len(lengths)].sum()) for rows in window)
        return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
