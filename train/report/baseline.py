"""The simple model that a run is compared with."""

from dataclasses import dataclass
from pathlib import Path

from pipework.run_folder.manifest import BaselineRecord, Manifest
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task

FOLDER = "linear"  # of its run, in the folder of the run that is compared with it


@dataclass(frozen=True, kw_only=True, eq=False)
class Baseline:
    """The scores and logits of a simple model fitted to the train rows.

    Attributes:
        name: the description of the model, and of the features of a linear model.
        split: the scored split: test, or dev if there is no test split.
        evaluation: its scores on this split.
        outputs: its outputs for this split.
        task: the task, with thresholds chosen for the baseline if the task is multi-label.
        rows: number of train rows that it was fitted to, of `all_rows`.
        seconds: time to fit it.
    """

    name: str
    split: str
    evaluation: Evaluation
    outputs: Outputs
    task: Task
    rows: int
    all_rows: int
    seconds: float

    @property
    def trained_on(self) -> str:
        """The train rows that it was fitted to."""
        if self.rows == self.all_rows:
            return "the same rows"
        return f"{self.rows:,} of the {self.all_rows:,} rows"

    def record(self, low: float, high: float) -> BaselineRecord:
        """Return the record for the manifest, with the interval of the gain over it."""
        return BaselineRecord(
            name=self.name,
            rows=self.rows,
            split=self.split,
            scores=self.evaluation.scores,
            low=low,
            high=high,
        )


def better_run(run: Path, manifest: Manifest) -> Path:
    """Return the run folder of the linear model if its score is as high, else the run."""
    baseline, metric = manifest.data.baseline, manifest.task.metric
    if baseline is None or not (run / FOLDER).is_dir():
        return run
    score = manifest.data.metrics[baseline.split].scores[metric]
    return run / FOLDER if baseline.scores[metric] >= score else run
