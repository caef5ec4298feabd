"""Inference with a proven engine or the checkpoint, for `pipe eval` and `pipe predict`."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import TEXTS, Example, fit_examples
from pipework.data.other_files import other_source
from pipework.data.splits import split_source
from pipework.errors import ChangedFileError, ConfigError, DataError, PipeError
from pipework.predict.text_model import EngineModel, predict_stream
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest, TrainingReadOptions, read_classifier
from pipework.scoring.calibration import both_calibrations
from pipework.scoring.evaluation import Engine, evaluate_leaks, label_array
from pipework.serve.engines.first_stage import open_served
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.predictions import Prediction
from pipework.text.encoding import open_encoder
from pipework.train.data_report.leaks import leaked_rows

log = logging.getLogger(__name__)
KEPT = re.compile(r"step-[0-9]+")


def evaluate_run(
    run: Path,
    file: Path | None,
    split: str,
    engine: str | None,
    progress: Progress,
    columns: str | None = None,
) -> Evaluation:
    """Score the checkpoint, or the engine of that name, on `file` or else on a split of the run.

    `file` is read with the columns of the training data, except those that `columns` replaces. If
    the train file is still there, rows that are also in train are scored separately, too.

    Raises:
        ConfigError: the run has no such split, or there are columns without a file.
        PipeError: a file, a folder or an engine cannot be read.
    """
    if columns is not None and file is None:
        message = "--columns needs a file"
        raise ConfigError(message, "pipe eval RUN FILE --columns text=NAME,label=NAME")
    manifest = read_classifier(run)
    if file is None:
        source = split_source(run, manifest, split)
    else:
        source = other_source(TrainingReadOptions.of(manifest.data), file)
        if columns is not None:
            source = source.with_columns(columns, (*TEXTS, "label"))
    examples = list(source.rows())
    encoder = open_encoder(run, manifest)
    labels_N = label_array(examples, manifest.task, str(source.path), encoder, manifest.windows)
    chosen = open_model(run, manifest, engine, checkpoint=engine is None)
    with EngineModel.open(run, manifest, chosen) as model:
        outputs = model.infer(examples, progress).outputs
    # A calibration cannot be removed from the joined outputs of windows.
    scale = manifest.model.calibration if manifest.windows is None else None
    evaluation = manifest.task.evaluate(outputs, labels_N).model_copy(
        update=both_calibrations(manifest.task, outputs, labels_N, scale)
    )
    # The rows of an import trained nothing: its split "train" calibrates static int8.
    if manifest.imported is not None or (file is None and split == "train"):
        return evaluation
    leaked_N = _leaked_rows(run, manifest, examples)
    leaked = evaluate_leaks(outputs, labels_N, manifest.task, leaked_N)
    return evaluation.model_copy(update={"leaked": leaked})


def _leaked_rows(run: Path, manifest: Manifest, rows: Sequence[Example]) -> NDArray[np.bool_]:
    """Return which rows are also in train; none if the train file is missing or has changed."""
    try:
        return leaked_rows(split_source(run, manifest, "train"), rows)
    except (ConfigError, DataError):
        return np.zeros(len(rows), np.bool_)


def open_model(
    run: Path, manifest: Manifest, name: str | None = None, *, checkpoint: bool
) -> Engine:
    """Open the checkpoint, the proven engine of that name, or the first engine that runs here.

    The name step-N means a checkpoint kept by `train.keep_every`.

    Raises:
        RunFolderError: files of the run folder do not match its manifest.
        MissingDependencyError: a package that the engine needs is not installed.
    """
    kept = name if name is not None and KEPT.fullmatch(name) else None
    if not checkpoint and kept is None:
        return open_served(run, manifest, name).engine
    from pipework.train.model.checkpoint_engine import open_reference  # noqa: PLC0415  (torch is optional for servers)

    return open_reference(run, manifest, kept=kept)


def open_best_model(run: Path, manifest: Manifest) -> Engine:
    """Open the default engine, or the checkpoint if no engine runs on this machine.

    Raises:
        ChangedFileError: a file of an engine has changed.
        PipeError: neither an engine nor the checkpoint can be opened.
    """
    if not manifest.engines:
        return open_model(run, manifest, checkpoint=True)
    try:
        return open_model(run, manifest, checkpoint=False)
    except ChangedFileError:
        raise
    except PipeError as reason:
        log.warning("no engine runs on this machine, using the checkpoint: %s", reason)
        try:
            return open_model(run, manifest, checkpoint=True)
        except ModuleNotFoundError:
            raise reason from None


def predict_run(
    run: Path, examples: Iterable[Example], engine_name: str | None = None
) -> Iterator[tuple[Example, Prediction]]:
    """Predict examples in order, with the named engine, or the default or the checkpoint.

    Raises:
        InputError: an input does not fit the model, such as a pair for a single-text model.
        ChangedFileError: a file of an engine has changed.
    """
    manifest = read_classifier(run)
    inputs = fit_examples(examples, manifest.input, first=1)
    if engine_name is None:
        engine = open_best_model(run, manifest)
    else:
        engine = open_model(run, manifest, engine_name, checkpoint=False)
    with EngineModel.open(run, manifest, engine) as model:
        yield from predict_stream(model, inputs)
