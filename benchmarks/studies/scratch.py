"""What each step gives to a Chinese classifier from scratch: `python -m pipework.benchmarks.studies.scratch`.

On the THUCNews headlines (`--data` holds train_45000.txt, dev.txt, test.txt and class.txt) each
step is added to those before it: the head, n-gram embeddings, regularisation, pretraining on the
train texts, distillation from all seeds of the step before. The same teachers teach models with a
small table of n-grams, and with none. It takes an hour or two, may be stopped at any time, and goes
on when it is started again with the same `--work`.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipework.benchmarks.studies.experiment import (
    Experiment,
    Sections,
    Training,
    Value,
    options,
    stored,
)
from pipework.benchmarks.studies.experiment_results import ExperimentResult
from pipework.export.inference import split_source
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.train.report.linear_baseline import linear_baseline

PLAIN, HEADS, NGRAMS = "tiny", "cnn head", "n-grams"
REGULARISED, PRETRAINING, PRETRAINED = "regularised", "pretraining", "pretrained"
DISTILLED = "distilled"
SMALL, SMALL_DISTILLED = "small table", "small table, distilled"
NONE_DISTILLED = "no n-grams, distilled"
NGRAM_ROWS, FEW_ROWS = 2**20, 2**18
# What Adam divides by is forgotten sooner than is usual: an n-gram that comes once in the texts is
# changed by 6 times the rate in all, with 0.999 by 32 times, which learns its text by heart.
BETAS = (0.9, 0.95)
KNOWN = {"SVM on TF-IDF of 1 to 3 characters": 90.36}


def trainings(data: Path, work: Path, seeds: tuple[int, ...]) -> tuple[Training, ...]:
    """Return the steps, each with what it needs."""
    tiny: Sections = _sections(data)
    cnn = _with(tiny, model={"head": "cnn"})
    ngrams = _with(cnn, model={"ngrams": NGRAM_ROWS})
    regularised = _with(ngrams, train={"token_dropout": 0.15, "label_smoothing": 0.1})
    first = work.absolute() / PRETRAINING / f"seed-{seeds[0]}"
    pretrained = _with(_without_preset(regularised), model={"name": str(first)})
    taught: dict[str, Value] = {
        "teacher": str(work.absolute() / PRETRAINED),
        "label_smoothing": 0.0,
    }
    small = _with(regularised, model={"ngrams": FEW_ROWS}, train={"epochs": 12})
    none = _with(small, model={"ngrams": 0}, train=taught)

    def step(
        name: str, sections: Sections, against: str | None, after: tuple[str, ...] = ()
    ) -> Training:
        return Training(
            name=name, sections=lambda _: sections, seeds=seeds, against=against, after=after
        )

    return (
        step(PLAIN, tiny, None),
        step(HEADS, cnn, PLAIN),
        step(NGRAMS, ngrams, HEADS),
        step(REGULARISED, regularised, NGRAMS),
        Training(
            name=PRETRAINING, sections=lambda _: _pretraining(data), seeds=seeds[:1], shown=False
        ),
        step(PRETRAINED, pretrained, REGULARISED, (PRETRAINING,)),
        step(DISTILLED, _with(pretrained, train=taught), PRETRAINED, (PRETRAINED,)),
        step(SMALL, small, None),
        step(SMALL_DISTILLED, _with(small, train=taught), SMALL, (PRETRAINED,)),
        step(NONE_DISTILLED, none, HEADS, (PRETRAINED,)),
    )


def _sections(data: Path) -> Sections:
    return {
        "task": {"labels": "class.txt"},
        "data": {
            "root": str(data.absolute()),
            "train": "train_45000.txt",
            "dev": "dev.txt",
            "test": "test.txt",
            "header": False,
            "columns": {"text": 0, "label": 1},
        },
        "model": {"preset": "tiny", "vocab_size": 8000, "max_length": 64},
        "train": {"epochs": 6, "batch_size": 256, "learning_rate": 1e-3, "betas": BETAS},
    }


def _pretraining(data: Path) -> Sections:
    """Return masked language modelling on the train texts alone, 1,000 of them held out."""
    return {
        "task": {"kind": "pretrain"},
        "data": {
            "root": str(data.absolute()),
            "train": "train_45000.txt",
            "dev_rows": 1000,
            "header": False,
            "columns": {"text": 0},
        },
        "model": {"preset": "tiny", "vocab_size": 8000, "max_length": 64, "ngrams": NGRAM_ROWS},
        "train": {"epochs": 20, "batch_size": 16, "learning_rate": 2e-3},
    }


def _with(sections: Sections, **changes: Mapping[str, Value]) -> Sections:
    return {name: {**section, **changes.get(name, {})} for name, section in sections.items()}


def _without_preset(sections: Sections) -> Sections:
    model = {key: value for key, value in sections["model"].items() if key != "preset"}
    return {**sections, "model": model}


def floors(run: Path, progress: Progress) -> dict[str, float]:
    """Return what linear models reach on test, in percent."""
    manifest = read_manifest(run)
    train, test = (split_source(run, manifest, name) for name in ("train", "test"))
    found = linear_baseline(train, test, manifest.task, progress)
    return {**KNOWN, found.name: 100 * found.evaluation.score}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train every step, score it and store the result; return the exit code."""
    parser = options("scratch", __doc__, seeds=3)
    given = parser.parse_args(arguments)
    steps = trainings(given.data, given.work, tuple(given.seeds))

    def made(experiment: Experiment) -> ExperimentResult:
        arms = experiment.run()
        found = floors(experiment.folder(PLAIN, given.seeds[0]), experiment.progress)
        return experiment.result("scratch", "THUCNews headlines, from scratch", arms, found)

    return stored(parser, given, steps, made)


if __name__ == "__main__":
    sys.exit(main())
