"""What is exported: a run folder with the rows that its engines are proven and calibrated on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from pipework.data.examples import Example, Source, chunks
from pipework.data.readers import Columns
from pipework.errors import DataError
from pipework.export.config import ExportSettings
from pipework.export.inference import open_encoder, split_source
from pipework.export.rows.edge_cases import Row, grid_rows
from pipework.export.rows.tolerances import TOLERANCES
from pipework.run_folder.engine_record import Layout, Precision, Tolerance
from pipework.run_folder.manifest import Input, Manifest
from pipework.scoring.evaluation import truth
from pipework.serve.engines.collate import Collate
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding
from pipework.train.config.run_config import SAMPLE


def stand_in(given: Input) -> list[Example]:
    """Return the sample's dev texts as inputs of the fields that a run takes, without labels.

    A pair is a text and the next one; entities are the two halves of a text.
    """
    texts = [one.text for one in Source(path=SAMPLE / "dev.tsv", columns=Columns()).rows()]
    return [
        Example(
            text=text,
            text_pair=following if given.pair else None,
            entities=_halves(text) if given.marked else None,
        )
        for text, following in zip(texts, [*texts[1:], texts[0]], strict=True)
    ]


def _halves(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    middle = len(text) // 2
    return (0, middle), (middle, len(text))


CHUNK = 2048
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A run with its rows.

    Attributes:
        run: the run folder.
        manifest: as it was when the export began.
        settings: how engines are built and proven.
        dev: labelled rows spread over dev, named by their numbers there from 1, or where a run has
            none the texts of `pipework.export.rows.run_rows`.
        truth_N: of `dev`, as `pipework.scoring.evaluation.truth` gives it; None without labels.
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
        rows = (
            _rows(run, manifest, "dev", settings.dev_rows)
            if labelled
            else dict(enumerate(stand_in(manifest.input), start=1))
        )
        examples, numbers = list(rows.values()), list(rows)
        return cls(
            run=run,
            manifest=manifest,
            settings=settings,
            dev=[
                Row(name=f"dev row {number}", encoding=encoding)
                for number, encoding in zip(numbers, encoder.encode(examples), strict=True)
            ],
            truth_N=(
                truth(examples, manifest.task, manifest.data.splits["dev"].path)
                if labelled
                else None
            ),
            grid=grid_rows(encoder, examples, numbers),
        )

    def tolerance(self, precision: Precision) -> Tolerance:
        """Return what an engine of a precision is held to."""
        return self.settings.tolerances.of(precision).over(TOLERANCES[precision])

    def rest(self) -> Iterator[tuple[list[Encoding], NDArray[np.generic]]]:
        """Yield the rows of dev that `dev` leaves out, in chunks, with what is true of them.

        Raises:
            DataError: the file is no longer there.
        """
        manifest = self.manifest
        source, encoder = split_source(self.run, manifest, "dev"), open_encoder(self.run, manifest)
        taken = set(_spread(manifest.data.splits["dev"].rows, self.settings.dev_rows))
        others = (row for place, row in enumerate(source.rows()) if place not in taken)
        for chunk in chunks(others, CHUNK):
            yield encoder.encode(chunk), truth(chunk, manifest.task, str(source.path))

    def calibration(self, most: int | None = None) -> list[Encoding]:
        """Return rows spread over train, for the ranges of activations.

        Args:
            most: how many; None for as many as the settings say.

        Raises:
            DataError: the train rows are not there.
        """
        rows = _rows(self.run, self.manifest, "train", most or self.settings.calibration_rows)
        return open_encoder(self.run, self.manifest).encode(list(rows.values()))


def _rows(run: Path, manifest: Manifest, split: str, most: int) -> dict[int, Example]:
    """Return at most so many rows of a split, spread over it, by their numbers from 1."""
    source = split_source(run, manifest, split)
    places = _spread(manifest.data.splits[split].rows, most)
    read = islice(source.rows(), max(places, default=0) + 1)
    wanted = set(places)
    rows = {place + 1: row for place, row in enumerate(read) if place in wanted}
    if not rows:
        message = f"{source.path} holds no rows to prove an engine on"
        raise DataError(message)
    return rows


def _spread(rows: int, most: int) -> list[int]:
    """Return the places, from 0 and rising, of at most so many rows.

    Each is drawn from a stretch of its own, all of like length: a file that is sorted by label
    gives all labels, and so does one whose labels take turns. The draw is the same each time.
    """
    if rows <= most:
        return list(range(rows))
    bounds = np.linspace(0, rows, most + 1).astype(np.int64)
    drawn = np.random.default_rng(SEED).integers(bounds[:-1], bounds[1:])
    return [int(place) for place in drawn]


def graph_feeds(
    graph: Path, subject: Subject, encodings: Sequence[Encoding], batch: int = 8
) -> list[dict[str, NDArray[np.int64]]]:
    """Return the arrays of calls of `batch` inputs each, in their order, by the graph's names.

    Args:
        graph: an ONNX file that `checkpoint_to_onnx` wrote, padded or packed.
        subject: for what its inputs look like.
        encodings: the inputs.
        batch: inputs of a call.
    """
    inputs = {one.name: one for one in onnx.load(graph, load_external_data=False).graph.input}
    packed = "text_index" in inputs
    collate = Collate(
        layout=Layout.PACKED if packed else Layout.PADDED,
        padding=Padding.of(subject.manifest.input),
        spans=subject.manifest.model.takes_spans,
        first_only=packed and inputs["text_index"].type.tensor_type.shape.dim[1].dim_value == 1,
        whole=True,
    )
    return [
        feed.arrays
        for start in range(0, len(encodings), batch)
        for feed in collate.feeds(encodings[start : start + batch])
    ]
