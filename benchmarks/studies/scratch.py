"""Measure the steps of training from scratch: `python -m pipework.benchmarks.studies.scratch`.

The data are the THUCNews headlines: `--data` holds train_45000.txt, dev.txt, test.txt and
class.txt. Each step is added to the steps before it: the head, n-gram embeddings, regularisation,
pretraining on the train texts, distillation from all seeds of the preceding step. The same teachers
are distilled into models with a small n-gram table and without one. The study takes one to two
hours; started again with the same `--work`, it resumes.
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
    run_and_store,
)
from pipework.benchmarks.studies.records.experiment_results import ExperimentResult
from pipework.data.splits import split_source
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.train.report.linear_baseline import linear_baseline

PLAIN, HEADS, NGRAMS = "tiny", "cnn head", "n-grams"
REGULARISED, PRETRAINING, PRETRAINED = "regularised", "pretraining", "pretrained"
DISTILLED = "distilled"
SMALL, SMALL_DISTILLED = "small table", "small table, distilled"
NONE_DISTILLED = "no n-grams, distilled"
NGRAM_ROWS, FEW_ROWS = 2**20, 2**18
# Adam's second moment decays faster than usual: the embedding of an n-gram that occurs once changes
# by 6 times the learning rate in total, with 0.999 by 32 times, which memorises its text.
BETAS = (0.9, 0.95)
KNOWN = {"SVM on TF-IDF of 1 to 3 characters": 90.36}


def trainings(data: Path, work: Path, seeds: tuple[int, ...]) -> tuple[Training, ...]:
    """Return the training runs of all steps with their dependencies."""
    tiny: Sections = _sections(data)
    cnn = _with(tiny, model={"head": "cnn"})
    ngrams = _with(cnn, model={"ngrams": NGRAM_ROWS})
    regularised = _with(ngrams, train={"token_dropout": 0.15, "label_smoothing": 0.1})
    first = work.absolute() / PRETRAINING / f"seed-{seeds[0]}"
    pretrained = _with(_without_preset(regularised), model={"name": str(first)})
    distilled: dict[str, Value] = {
        "teacher": str(work.absolute() / PRETRAINED),
        "label_smoothing": 0.0,
    }
    small = _with(regularised, model={"ngrams": FEW_ROWS}, train={"epochs": 12})
    none = _with(small, model={"ngrams": 0}, train=distilled)

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
        step(DISTILLED, _with(pretrained, train=distilled), PRETRAINED, (PRETRAINED,)),
        step(SMALL, small, None),
        step(SMALL_DISTILLED, _with(small, train=distilled), SMALL, (PRETRAINED,)),
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
    """Return the config of masked language modelling on the train texts, 1,000 held out."""
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
    """Return the test scores of linear models in percent."""
    manifest = read_manifest(run)
    sources = {name: split_source(run, manifest, name) for name in ("train", "test")}
    baseline = linear_baseline(sources, manifest.task, progress)
    return {**KNOWN, baseline.name: 100 * baseline.evaluation.score}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and score all steps and store the result; return the exit code."""
    parser = options("scratch", __doc__, seeds=3)
    choice = parser.parse_args(arguments)
    steps = trainings(choice.data, choice.work, tuple(choice.seeds))

    def build(experiment: Experiment) -> ExperimentResult:
        arms = experiment.run()
        baselines = floors(experiment.folder(PLAIN, choice.seeds[0]), experiment.progress)
        return experiment.result("THUCNews headlines, from scratch", arms, baselines)

    return run_and_store(parser, choice, steps, build)


if __name__ == "__main__":
    sys.exit(main())
