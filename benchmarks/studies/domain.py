"""Measure the gain of domain pretraining: `python -m pipework.benchmarks.studies.domain`.

The data are SST-2: `--data` holds train_full.tsv, dev.tsv and test-labeled.tsv. An encoder
(`--model`) is fine-tuned on 500 labelled rows, directly and after masked language modelling on all
train sentences. Each seed samples its own rows, the same for both arms. Started again with the same
`--work`, the study resumes.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from pipework.benchmarks.studies.experiment import (
    Experiment,
    Sections,
    Training,
    options,
    run_and_store,
)
from pipework.benchmarks.studies.records.experiment_results import ExperimentResult
from pipework.data.readers import numbered_lines
from pipework.run_folder.files import write_atomically

TRAIN = "train_full.tsv"
PRETRAINING, PLAIN, ADAPTED = "pretraining", "fine-tuned", "pretrained, then fine-tuned"


def draw(data: Path, work: Path, rows: int, seed: int) -> Path:
    """Write a random sample of train rows to a file in `work`; return its path.

    Raises:
        DataError: the train file cannot be read.
    """
    header, *all_rows = (text for _, text in numbered_lines(data / TRAIN) if text)
    chosen = random.Random(seed).sample(all_rows, rows)  # noqa: S311  (not for security)
    path = work / "rows" / f"{rows}-seed-{seed}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(f"{row}\n" for row in (header, *chosen)).encode())
    return path


def trainings(
    data: Path, work: Path, model: str, rows: int, seeds: tuple[int, ...]
) -> tuple[Training, ...]:
    """Return the pretraining run and the two arms."""

    def tuning(name: str, seed: int) -> Sections:
        return {
            "task": {"labels": ("negative", "positive")},
            "data": {
                "root": str(data.absolute()),
                "train": str(draw(data, work, rows, seed).absolute()),
                "dev": "dev.tsv",
                "test": "test-labeled.tsv",
                "columns": {"text": "sentence", "label": "label"},
            },
            "model": {"name": name, "max_length": 64},
            "train": {"epochs": 10, "batch_size": 16, "learning_rate": 5e-5},
        }

    adapted = str(work.absolute() / PRETRAINING / f"seed-{seeds[0]}")
    return (
        Training(
            name=PRETRAINING,
            sections=lambda _: _pretraining(data, model),
            seeds=seeds[:1],
            shown=False,
        ),
        Training(name=PLAIN, sections=lambda seed: tuning(model, seed), seeds=seeds),
        Training(
            name=ADAPTED,
            sections=lambda seed: tuning(adapted, seed),
            seeds=seeds,
            after=(PRETRAINING,),
            against=PLAIN,
        ),
    )


def _pretraining(data: Path, model: str) -> Sections:
    return {
        "task": {"kind": "pretrain"},
        "data": {
            "root": str(data.absolute()),
            "train": TRAIN,
            "dev_rows": 1000,
            "columns": {"text": "sentence"},
        },
        "model": {"name": model, "max_length": 64},
        "train": {"epochs": 5, "batch_size": 32, "learning_rate": 1e-4},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and score both arms and store the result; return the exit code."""
    parser = options("domain", __doc__, seeds=5)
    parser.add_argument("--model", required=True, help="hub id or folder of the encoder")
    parser.add_argument("--name", default="MiniLM-L6", help="name of the model in the table")
    parser.add_argument("--rows", type=int, default=500, help="number of labelled rows")
    choice = parser.parse_args(arguments)
    folder = Path(choice.model)
    model = str(folder.absolute()) if folder.is_dir() else choice.model
    steps = trainings(choice.data, choice.work, model, choice.rows, tuple(choice.seeds))

    def build(experiment: Experiment) -> ExperimentResult:
        return experiment.result("domain", f"SST-2, {choice.name}", experiment.run(), {})

    return run_and_store(parser, choice, steps, build)


if __name__ == "__main__":
    sys.exit(main())
