"""Score the steps of training from scratch: `python -m pipework.benchmarks.studies.scratch`.

The data are the THUCNews headlines. Each step is added to the steps before it: the head, n-gram
embeddings, regularisation, pretraining on the train texts, distillation from all seeds of the
preceding step. The same teachers are distilled into models with a small n-gram table and without
one. `tables.mk` trains the steps, each with the same seeds in a folder of its own, and has their
settings. The test split is scored after all steps are trained.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.stats.confidence import t_quantile
from pipework.benchmarks.studies.accuracy import minutes
from pipework.benchmarks.studies.records.experiment_results import Arm, Difference, ExperimentResult
from pipework.benchmarks.studies.records.training_results import Setting, recorded_settings
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.export.inference import evaluate_run
from pipework.progress import Progress
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import metric_in_words
from pipework.train.config.run_config import run_config
from pipework.train.distill.teacher import runs_of
from pipework.train.report.baseline import FOLDER

KNOWN = {"SVM on TF-IDF of 1 to 3 characters": 90.36}
SHOWN = {"preset", "vocab_size", "ngrams", "max_length", "dropout", "head"}
EXCLUDED = {"seed", "seeds", "teacher"}  # they differ by seed, or are paths of this machine
PRETRAINING = ("scratch-pretraining",)
TEACHERS = ("scratch-pretrained", *PRETRAINING)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A row of the table.

    Attributes:
        folder: folder of its runs.
        against: name of the step to compare the scores with.
        after: folders of the runs that must be trained before.
    """

    folder: str
    against: str | None = None
    after: tuple[str, ...] = ()


STEPS: Mapping[str, Step] = {
    "tiny": Step(folder="scratch-tiny"),
    "cnn head": Step(folder="scratch-cnn", against="tiny"),
    "n-grams": Step(folder="scratch-ngrams", against="cnn head"),
    "regularised": Step(folder="scratch-regularised", against="n-grams"),
    "pretrained": Step(folder="scratch-pretrained", against="regularised", after=PRETRAINING),
    "distilled": Step(folder="scratch-distilled", against="pretrained", after=TEACHERS),
    "small table": Step(folder="scratch-small"),
    "small table, distilled": Step(
        folder="scratch-small-distilled", against="small table", after=TEACHERS
    ),
    "no n-grams, distilled": Step(
        folder="scratch-none-distilled", against="cnn head", after=TEACHERS
    ),
}


def scored(runs: Path, words: tuple[str, ...], progress: Progress) -> ExperimentResult:
    """Score all steps, whose folders are in `runs`, on the test split.

    Raises:
        PipeError: a run, its data or its checkpoint cannot be read.
    """
    arms: dict[str, Arm] = {}
    for name, step in STEPS.items():
        before = arms[step.against] if step.against else None
        arms[name] = _arm(name, step, runs, before, progress)
    first = runs_of(runs / next(iter(STEPS.values())).folder)[0]
    manifest = read_manifest(first)
    splits = manifest.data.splits
    linear = evaluate_run(first / FOLDER, None, "test", None, progress)
    return ExperimentResult(
        experiment="scratch",
        dataset="THUCNews headlines, from scratch",
        metric=metric_in_words(manifest.task.metric),
        train_rows=splits["train"].rows,
        test_rows=splits["test"].rows,
        arms=tuple(arms.values()),
        floors={**KNOWN, "linear model": 100 * linear.score},
        command=words,
        provenance=provenance(),
    )


def _arm(name: str, step: Step, runs: Path, before: Arm | None, progress: Progress) -> Arm:
    seeds = runs_of(runs / step.folder)
    manifests = [read_manifest(run) for run in seeds]
    dev = [manifest.data.metrics["dev"].scores[manifest.task.metric] for manifest in manifests]
    test = [evaluate_run(run, None, "test", None, progress).score for run in seeds]
    scores = tuple(100 * score for score in test)
    earlier = (run for folder in step.after for run in runs_of(runs / folder))
    return Arm(
        name=name,
        seeds=tuple(manifest.identity.seed or 0 for manifest in manifests),
        dev=tuple(100 * score for score in dev),
        test=scores,
        minutes=mean(map(minutes, seeds)),
        minutes_before=sum(map(minutes, earlier)),
        parameters=manifests[0].model.parameters,
        difference=None if before is None else difference(before.name, before.test, scores),
        settings=_settings(seeds[0]),
    )


def _settings(run: Path) -> dict[str, Setting]:
    config = run_config(run)
    model = recorded_settings(config.model)
    train = recorded_settings(config.train)
    shown = {key: model[key] for key in model if key in SHOWN}
    return shown | {key: train[key] for key in train if key not in EXCLUDED}


def difference(name: str, before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Return the mean paired difference with Student's t bounds; None for a single pair."""
    gains = np.array(after) - np.array(before)
    if len(gains) == 1:
        return None
    mean_gain, error = float(gains.mean()), float(gains.std(ddof=1)) / len(gains) ** 0.5
    margin = t_quantile(0.975, len(gains) - 1) * error
    return Difference(against=name, mean=mean_gain, low=mean_gain - margin, high=mean_gain + margin)


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Score all steps and store the result; return the exit code."""
    parser = study_parser("scratch", __doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained steps")
    options = parser.parse_args(arguments)
    words = command(parser, options)
    stored(options.out, lambda progress: scored(options.runs, words, progress))
    return 0


if __name__ == "__main__":
    sys.exit(main())
