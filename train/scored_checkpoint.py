"""The best checkpoint of a classifier, scored on dev and test.

Shapes: N rows of a split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.scoring.bootstrap import TaskOutputs
from pipework.scoring.evaluation import infer_all, label_array
from pipework.tasks.evaluation import Evaluation, SplitMetrics
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.text.encoding import Encoding, TextEncoder, token_digest
from pipework.train.config.data import CALIBRATION
from pipework.train.data_report.leaks import leaked_rows
from pipework.train.data_report.records import DataReport
from pipework.train.distill.teacher import Teacher
from pipework.train.inputs import TokenSets
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.loop import TrainingRun
from pipework.train.loop.resume import TrainState
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import Classifier
from pipework.train.report.shorter_inputs import shorter_inputs
from pipework.train.report.verdict import ScoredRows
from pipework.train.run_folder import TOKENIZER


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run after its last training step, and its teachers.

    `per_epoch` is the number of steps of an epoch.
    """

    run: TrainingRun
    task: Task
    data: TokenSets
    report: DataReport
    state: TrainState
    per_epoch: int
    teachers: tuple[Teacher, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredCheckpoint:
    """The best checkpoint on dev.

    Attributes:
        task: the task, with the thresholds chosen on dev.
        calibration: what its last layer was multiplied with, if anything.
        outputs: its outputs for dev.
        evaluation: its scores on dev.
        tokens: digest of the token ids of dev.
        judged: the rows on which it is judged: test, or else dev.
    """

    task: Task
    calibration: LogitScale | None
    outputs: Outputs
    evaluation: Evaluation
    tokens: str
    judged: ScoredRows

    @property
    def metrics(self) -> dict[str, SplitMetrics]:
        """The scores for the manifest, by split name."""
        dev = self.evaluation.metrics().model_copy(update={"tokens": self.tokens})
        if self.judged.split == "dev":
            return {"dev": dev}
        test = self.task.evaluate(self.judged.outputs, self.judged.truth)
        return {"dev": dev, self.judged.split: test.metrics()}


def shorter_limit(trained: TrainedRun, model: Classifier, scored: ScoredCheckpoint) -> str | None:
    """Return a sentence with a shorter `model.max_length` that is enough for dev, if there is one.

    See `train.report.shorter_inputs`.
    """
    return shorter_inputs(
        [*trained.run.config.sources()["dev"].rows()],
        encoder_of(trained),
        lambda encodings: _infer(trained, model, encodings),
        TaskOutputs(outputs=scored.outputs, task=scored.task),
        trained.data.dev.truth,
    )


def score(trained: TrainedRun, model: Classifier) -> ScoredCheckpoint:
    """Calibrate a checkpoint, and score it in float32 as the reference for later stages."""
    dev = trained.data.dev
    encodings = dev.encodings(range(len(dev)))
    outputs = _infer(trained, model, encodings)
    calibration = _calibration(trained, model, outputs)
    if calibration is not None:
        model.calibrate(calibration)
        outputs = calibration.apply(outputs)
    task = trained.task.with_thresholds(outputs.values, dev.truth)
    sources = trained.run.config.sources()
    split = "test" if "test" in sources else "dev"  # the checkpoint was chosen on dev
    examples = [*sources[split].rows()]
    judged, truth = outputs, dev.truth
    if split != "dev":
        judged, truth = _infer_labelled(trained, model, split, examples)
    return ScoredCheckpoint(
        task=task,
        calibration=calibration,
        outputs=outputs,
        evaluation=task.evaluate(outputs, dev.truth),
        tokens=token_digest(encodings),
        judged=ScoredRows(
            split=split,
            outputs=judged,
            truth=truth,
            task=task,
            leaked_N=_leaked(trained, split, examples),
        ),
    )


def _calibration(trained: TrainedRun, model: Classifier, dev: Outputs) -> LogitScale | None:
    """Fit the calibration to rows of its own, or else to dev."""
    if not (trained.run.config.train.calibrate and trained.task.has_labels):
        return None
    sources = trained.run.config.sources()
    outputs, truth = dev, trained.data.dev.truth
    if CALIBRATION in sources:
        rows = [*sources[CALIBRATION].rows()]
        outputs, truth = _infer_labelled(trained, model, CALIBRATION, rows)
    found = trained.task.fit_calibration(outputs.values, truth, offsets=model.has_bias)
    if found is None and CALIBRATION in sources and not trained.task.rows_per_token:
        trained.run.progress.note("too few rows of data.calibration: nothing was calibrated")
    return found


def _infer(trained: TrainedRun, model: Classifier, encodings: list[Encoding]) -> Outputs:
    engine = CheckpointEngine(
        model,
        padding=trained.data.vocabulary.padding,
        row_offsets=trained.task.row_offsets,
    )
    with exact_float32():
        return infer_all(engine, encodings, trained.run.progress)


def _infer_labelled(
    trained: TrainedRun, model: Classifier, split: str, rows: Sequence[Example]
) -> tuple[Outputs, NDArray[np.generic]]:
    """Return the outputs and the labels of the rows of a split."""
    encoder = encoder_of(trained)
    outputs = _infer(trained, model, encoder.encode(rows))
    path = trained.run.config.sources()[split].path
    return outputs, label_array(rows, trained.task, str(path), encoder)


def encoder_of(trained: TrainedRun) -> TextEncoder:
    """Return the encoder of a run that has its tokenizer."""
    return TextEncoder.open(
        trained.run.out / TOKENIZER,
        max_length=trained.run.config.model.max_length,
        type_ids=trained.data.vocabulary.padding.type_ids,
    )


def _leaked(trained: TrainedRun, split: str, examples: list[Example]) -> NDArray[np.bool_]:
    """Return which rows of a split are also in train, bool [N]."""
    shared = {(pair.earlier, pair.later): pair.rows for pair in trained.report.shared}
    if not shared["train", split]:  # the train file need not be read again
        return np.zeros(len(examples), np.bool_)
    return leaked_rows(trained.run.config.sources()["train"], examples)
