"""The two stages of a cascade: what they need, their outputs and times, the rows that prove it.

Shapes: N rows.
"""

import shutil
import time
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.data.other_files import other_source, unlabelled_source
from pipework.data.splits import split_source
from pipework.errors import ConfigError, DataError
from pipework.export.config import CascadeSettings
from pipework.progress import Progress
from pipework.run_folder.cascade import FOLDER
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import (
    Manifest,
    TrainingReadOptions,
    read_classifier,
    write_manifest,
)
from pipework.scoring.bootstrap import TaskOutputs, paired_interval
from pipework.scoring.evaluation import infer_all, label_array
from pipework.serve.engines import choose_engine, open_proven
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Floats, Task
from pipework.text.encoding import Encoding, open_encoder
from pipework.train.config.data import CALIBRATION

WARM_UP = 8  # texts


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A run of a cascade and its engine, with a number of threads; None for all processors."""

    run: Path
    manifest: Manifest
    engine: EngineRecord
    threads: int | None

    @classmethod
    def of(cls, run: Path, *, threads: int | None = None) -> "Stage":
        """Return the engine of a run that is served."""
        manifest = read_classifier(run)
        engine = choose_engine(manifest)
        return cls(run=run, manifest=manifest, engine=engine, threads=threads)

    def infer(self, encodings: Sequence[Encoding], progress: Progress) -> tuple[Outputs, float]:
        """Return the outputs, and the microseconds for a text."""
        name = self.engine.name
        with open_proven(self.run, self.manifest, name, threads=self.threads) as engine:
            engine.infer(encodings[:WARM_UP])
            start_s = time.perf_counter()
            outputs = infer_all(engine, encodings, progress)
            return outputs, 1e6 * (time.perf_counter() - start_s) / len(encodings)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredStages:
    """The outputs of a first stage and of an engine, and the microseconds for a text."""

    outputs: tuple[Outputs, Outputs]
    scores_N: Floats
    encode_us: float
    text_us: tuple[float, float]

    @classmethod
    def of(
        cls, first: Stage, engine: Stage, rows: Sequence[Example], progress: Progress
    ) -> "MeasuredStages":
        """Compute rows with both, one after the other.

        Tokenization is measured with a cache that has the words of the rows, as that of a server
        has after some time: the best of three repetitions.
        """
        encoder = open_encoder(engine.run, engine.manifest)
        encodings = encoder.encode(rows)
        encode_s = min(timeit.repeat(lambda: encoder.encode(rows), number=1, repeat=3))
        encode_us = 1e6 * encode_s / len(rows)
        (before, before_us), (after, after_us) = (
            stage.infer(encodings, progress) for stage in (first, engine)
        )
        return cls(
            outputs=(before, after),
            scores_N=best_scores(first.manifest, before),
            encode_us=encode_us,
            text_us=(before_us, after_us),
        )

    @property
    def differs_N(self) -> NDArray[np.bool_]:  # noqa: N802  (the shape)
        """Whether the labels differ."""
        before, after = (outputs.values.argmax(axis=1) for outputs in self.outputs)
        return np.asarray(before != after)

    def score_and_gain(
        self, task: Task, rows: Sequence[Example], source: str, answered_N: NDArray[np.bool_]
    ) -> tuple[float, tuple[float, float, float]]:
        """Return the score of the engine, and the change by a cascade with its 95 % interval.

        Args:
            task: the task of the engine.
            rows: the rows, with labels.
            source: their name for errors.
            answered_N: whether the first stage answers a row.
        """
        truth_N = label_array(rows, task, source)
        first, engine = self.outputs
        cascade = Outputs.of(np.where(answered_N[:, None], first.values, engine.values))
        alone, both = (TaskOutputs(outputs=outputs, task=task) for outputs in (engine, cascade))
        interval = paired_interval(alone, both, truth_N)
        score = task.evaluate(engine, truth_N).score
        gain = task.evaluate(cascade, truth_N).score - score
        return score, (gain, interval.low, interval.high)


def check_first_stage(run: Path, manifest: Manifest, folder: Path) -> None:
    """Check that a run can be the first stage of another.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(manifest.task, SingleLabelTask) or manifest.task.rows_per_token:
        message = f"{run} has no single label for each text, so it cannot be in a cascade"
        raise ConfigError(message, "a cascade compares the labels of two models")
    if manifest.task.min_scores:
        message = f"{run} gives no label for low scores, which a cascade does not keep"
        raise ConfigError(message, f"first: pipe export {run} --to auto --set decision.min_score=0")
    if manifest.windows is not None:
        message = f"{run} reads longer texts in windows, which a cascade does not support"
        raise ConfigError(message, f"first: pipe export {run} --to auto --set windows.join=first")
    if not folder.is_dir():
        message = f"{folder} is not a run folder, so there is no first stage"
        hint = f"pipe train CONFIG --set model.preset=linear --set model.vocab={run}/tokenizer.json"
        raise ConfigError(message, f"{hint}, then --first RUN")
    first = read_classifier(folder)
    task = first.task
    if not isinstance(task, SingleLabelTask) or task.labels != manifest.task.labels:
        message = f"{folder} has other labels than {run}"
        raise ConfigError(message, "train the first stage on the same data")
    same = first.input.tokenizer.sha256 == manifest.input.tokenizer.sha256
    if not same or first.input.max_length != manifest.input.max_length:
        message = f"{folder} has another tokenizer or max_length than {run}"
        hint = f"train it with model.vocab={run}/tokenizer.json and model.max_length="
        raise ConfigError(message, f"{hint}{manifest.input.max_length}")
    if first.input.type_ids and not manifest.input.type_ids:
        message = f"{folder} reads type ids, which {run} does not have"
        raise ConfigError(message, "use a first stage with model.preset=linear")


def best_scores(manifest: Manifest, outputs: Outputs) -> Floats:
    """Return the score of the label of each input of a run that `check_first_stage` has checked."""
    task = manifest.task
    if not isinstance(task, SingleLabelTask):
        raise TypeError(type(task).__name__)
    return task.best_scores(outputs.values)


def proof_rows(
    run: Path, manifest: Manifest, settings: CascadeSettings
) -> tuple[list[Example], str]:
    """Return the rows that prove a cascade, and their name."""
    if settings.rows is not None:
        reading = TrainingReadOptions.of(manifest.data)
        try:
            rows = [*other_source(reading, settings.rows).rows()]
        except DataError:  # without labels; else this raises it again
            rows = [*unlabelled_source(reading, settings.rows).rows()]
        if not rows:
            message = f"{settings.rows} holds no rows"
            raise DataError(message)
        return rows, settings.rows.name
    split = CALIBRATION if CALIBRATION in manifest.data.splits else "dev"
    return [*split_source(run, manifest, split).rows()], split


def copy_first_stage(run: Path, folder: Path, manifest: Manifest, record: EngineRecord) -> None:
    """Copy the run of a first stage with one engine to RUN/first-stage."""
    target = run / FOLDER
    partial = target.with_name(f"{FOLDER}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    files = (manifest.input.tokenizer, *record.files)
    verify_files(folder, files)
    for file in files:
        (partial / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / file.path, partial / file.path)
    write_manifest(partial, manifest.model_copy(update={"engines": (record,)}))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
