"""What is exported: a run folder with the rows that its engines are proven and calibrated on."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.answer import open_encoder, split_source
from export.config import ExportSettings
from export.grid import Row, grid_rows
from export.stand_in import stand_in
from export.tolerances import TOLERANCES
from pipework.encoding import Encoding
from pipework.engine_record import Precision, Tolerance
from pipework.errors import DataError
from pipework.evaluation import truth
from pipework.examples import Example
from pipework.manifest import Manifest


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A run with its rows.

    Attributes:
        run: the run folder.
        manifest: as it was when the export began.
        settings: how engines are built and proven.
        dev: labelled rows of dev, or where a run has none the texts of `export.stand_in`.
        truth_N: of `dev`, as `pipework.evaluation.truth` gives it; None without labels.
        grid: inputs that are run at several batch sizes.
    """

    run: Path
    manifest: Manifest
    settings: ExportSettings
    dev: Sequence[Row]
    truth_N: NDArray[np.generic] | None
    grid: Sequence[Row]

    @classmethod
    def open(cls, run: Path, manifest: Manifest, settings: ExportSettings) -> "Subject":
        """Read and encode the rows.

        Raises:
            DataError: the dev rows that a proof needs are not there.
        """
        encoder = open_encoder(run, manifest)
        labelled = "dev" in manifest.data.splits
        examples = (
            _rows(run, manifest, "dev", settings.dev_rows) if labelled else stand_in(manifest.input)
        )
        return cls(
            run=run,
            manifest=manifest,
            settings=settings,
            dev=[
                Row(name=f"dev row {number}", encoding=encoding)
                for number, encoding in enumerate(encoder.encode(examples), start=1)
            ],
            truth_N=(
                truth(examples, manifest.task, manifest.data.splits["dev"].path)
                if labelled
                else None
            ),
            grid=grid_rows(encoder, examples),
        )

    def tolerance(self, precision: Precision) -> Tolerance:
        """Return what an engine of a precision is held to."""
        return self.settings.tolerances.of(precision).over(TOLERANCES[precision])

    def calibration(self) -> list[Encoding]:
        """Return rows of train, spread over its first part, for the ranges of activations.

        Raises:
            DataError: the train rows are not there.
        """
        wanted = self.settings.calibration_rows
        examples = _rows(self.run, self.manifest, "train", 20 * wanted)
        step = max(1, len(examples) // wanted)
        return open_encoder(self.run, self.manifest).encode(examples[::step][:wanted])


def _rows(run: Path, manifest: Manifest, split: str, most: int) -> list[Example]:
    source = split_source(run, manifest, split)
    examples = list(islice(source.rows(), most))
    if not examples:
        message = f"{source.path} holds no rows to prove an engine on"
        raise DataError(message)
    return examples
