"""The labelled rows of a decision: they have neither trained the model nor chosen its checkpoint.

Shapes: N rows.
"""

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source
from pipework.data.other_files import other_source
from pipework.data.splits import split_source
from pipework.errors import ConfigError, DataError
from pipework.export.config import DecisionSettings
from pipework.export.inference import open_model
from pipework.predict.text_model import EngineModel
from pipework.progress import Progress, counted
from pipework.run_folder.manifest import LockedRun, TrainingReadOptions
from pipework.scoring.evaluation import label_array
from pipework.tasks.outputs import Outputs
from pipework.train.config.data import CALIBRATION
from pipework.train.data_report.leaks import leaked_rows


def labelled_outputs(
    locked: LockedRun, settings: DecisionSettings, progress: Progress
) -> tuple[Outputs, NDArray[np.generic], str]:
    """Return the outputs of the checkpoint, the labels, and the name of the rows.

    Raises:
        ConfigError: there are no rows, or all have trained the model or chosen the checkpoint.
    """
    source, name = _source(locked, settings)
    rows = _without_learned(locked, [*source.rows()], progress)
    manifest = locked.manifest
    engine = open_model(locked.folder, manifest, checkpoint=True)
    with EngineModel.open(locked.folder, manifest, engine) as model:
        encoder = model.codec.encoder
        truth_N = label_array(rows, manifest.task, str(source.path), encoder, manifest.windows)
        return model.infer(rows, progress).outputs, truth_N, name


def _source(locked: LockedRun, settings: DecisionSettings) -> tuple[Source, str]:
    """Return the labelled rows and their name.

    Raises:
        ConfigError: the run has none.
    """
    manifest = locked.manifest
    if settings.rows is not None:
        reading = TrainingReadOptions.of(manifest.data)
        if reading.label is None:  # an import without labelled rows
            reading = reading.model_copy(update={"label": "label"})
        return other_source(reading, settings.rows), settings.rows.name
    hint = "set decision.rows to a file of labelled rows"
    if manifest.imported is None:
        hint += ", or train with data.calibration_rows=N"
    split = CALIBRATION if manifest.imported is None else "dev"
    if split not in manifest.data.splits:
        message = f"{locked.folder} has no labelled rows for the decision: no split {split!r}"
        raise ConfigError(message, hint)
    return split_source(locked.folder, manifest, split), split


def _without_learned(locked: LockedRun, rows: list[Example], progress: Progress) -> list[Example]:
    """Leave out rows whose texts have trained the model or chosen its checkpoint.

    Raises:
        ConfigError: all have.
    """
    manifest = locked.manifest
    if manifest.imported is not None:
        return rows
    learned_N = np.zeros(len(rows), np.bool_)
    for split in ("train", "dev"):
        try:
            learned_N |= leaked_rows(split_source(locked.folder, manifest, split), rows)
        except (ConfigError, DataError):
            progress.note(f"decision: the {split} file is not there to be compared with the rows")
    if rows and learned_N.all():
        message = "the rows for the decision have trained the model or chosen its checkpoint"
        raise ConfigError(message, "expected other labelled rows: decision.rows=FILE")
    if learned_N.any():
        left_out = counted(int(learned_N.sum()), "row")
        progress.note(f"decision: {left_out} left out: also in train or dev")
    return [row for row, learned in zip(rows, learned_N.tolist(), strict=True) if not learned]
