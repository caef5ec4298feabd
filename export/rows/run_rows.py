"""A run with the rows that check and calibrate its engines."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from pipework.data.examples import Example, Source, chunks, fit_examples
from pipework.data.kept_rows import kept_source, sample_evenly, spread
from pipework.data.splits import split_source
from pipework.errors import DataError
from pipework.export.config import TOLERANCES, ExportSettings
from pipework.export.rows.edge_cases import Row, WordRows, edge_case_rows, encoded_rows
from pipework.run_folder.engine_record import Precision, Tolerance
from pipework.run_folder.manifest import Input, Manifest
from pipework.scoring.evaluation import label_array
from pipework.serve.engines.collate import Collate, layout_of
from pipework.text.encoding import Encoding, TextEncoder, open_encoder
from pipework.text.padding import Padding
from pipework.train.config.run_config import SAMPLE
from pipework.train.model.bag_of_ngrams import ngram_table
from pipework.train.model.checkpoint import FOLDER
from pipework.train.model.ngram_embeddings import NgramTable

CHUNK = 2048
SHORT_ROWS = 256


def sample_rows(input_: Input) -> list[Example]:
    """Return the dev texts of the sample data as unlabelled inputs with the fields of a run.

    A pair is a text and the next text; entities are the two halves of a text.
    """
    texts = [example.text for example in Source(path=SAMPLE / "dev.tsv").rows()]
    return [
        Example(
            text=text,
            text_pair=following if input_.pair else None,
            entities=_halves(text) if input_.marked else None,
        )
        for text, following in zip(texts, [*texts[1:], texts[0]], strict=True)
    ]


def _halves(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    middle = len(text) // 2
    return (0, middle), (middle, len(text))


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRows:
    """A run with the rows for parity checks and calibration.

    Attributes:
        run: the run folder.
        manifest: the manifest at the start of the export.
        settings: export settings.
        dev: dev rows, sampled evenly and named by their row numbers from 1; for a run without dev
            data, the rows of `sample_rows`.
        unlabelled: rows of the file of `settings.unlabelled`, sampled evenly.
        truth_N: labels of `dev`, see `pipework.scoring.evaluation.label_array`; None without.
        edge_cases: inputs that are checked at several batch sizes.
        vocabulary: inputs with every token and every bucket of an n-gram table, see `WordRows`.
        lengths: inputs of every length.
        short: inputs of one token, for calls with many texts.
        unread_buckets: number of buckets of the table that no input was found for.
    """

    run: Path
    manifest: Manifest
    settings: ExportSettings
    dev: Sequence[Row]
    unlabelled: Sequence[Row]
    truth_N: NDArray[np.generic] | None
    edge_cases: Sequence[Row]
    vocabulary: Sequence[Row]
    lengths: Sequence[Row]
    short: Sequence[Row]
    unread_buckets: int

    @classmethod
    def open(cls, run: Path, manifest: Manifest, settings: ExportSettings) -> "RunRows":
        """Read and encode the rows.

        Raises:
            DataError: the dev rows for the parity check are missing.
        """
        encoder = open_encoder(run, manifest)
        splits = manifest.data.splits
        labelled = "dev" in splits and manifest.data.reading.label is not None
        rows = (
            _rows(run, manifest, "dev", settings.dev_rows)
            if "dev" in splits
            else dict(enumerate(sample_rows(manifest.input), start=1))
        )
        examples, numbers = list(rows.values()), list(rows)
        words = WordRows.of(encoder, examples[0])
        vocabulary, ngrams, unread = words.vocabulary(), list[Row](), 0
        folder = run / FOLDER
        table = ngram_table(folder) or NgramTable.read(folder, int(words.empty.ids[0]))
        if table is not None:
            ngrams, unread = words.ngrams(table, vocabulary)
        dev = encoded_rows(encoder, (f"dev row {number}" for number in numbers), examples)
        return cls(
            run=run,
            manifest=manifest,
            settings=settings,
            dev=dev,
            unlabelled=_unlabelled_rows(manifest, settings, encoder),
            truth_N=(
                label_array(examples, manifest.task, splits["dev"].path, encoder)
                if labelled
                else None
            ),
            edge_cases=edge_case_rows(encoder, examples, numbers),
            vocabulary=[*vocabulary, *ngrams],
            lengths=words.lengths(dev),
            short=words.single(dev, SHORT_ROWS),
            unread_buckets=unread,
        )

    def tolerance(self, precision: Precision) -> Tolerance:
        """Return the tolerance for engines of a precision."""
        return self.settings.tolerances.for_precision(precision).apply_to(TOLERANCES[precision])

    def remaining_dev(self) -> Iterator[tuple[list[Encoding], NDArray[np.generic]]]:
        """Yield the dev rows that are not in `dev`, in chunks, with their labels.

        Raises:
            DataError: the file is missing or has changed.
        """
        manifest = self.manifest
        source, encoder = split_source(self.run, manifest, "dev"), open_encoder(self.run, manifest)
        sampled = set(spread(manifest.data.splits["dev"].rows, self.settings.dev_rows))
        others = (row for index, row in enumerate(source.rows()) if index not in sampled)
        for chunk in chunks(others, CHUNK):
            truth_N = label_array(chunk, manifest.task, str(source.path), encoder)
            yield encoder.encode(chunk), truth_N

    def calibration_rows(self, count: int | None = None) -> list[Encoding]:
        """Return train rows, sampled evenly, for the calibration of activations.

        Without the train file these are the rows that the run has kept, or some of them; for a run
        without a train split, the rows of `sample_rows`.

        Args:
            count: number of rows; None uses `settings.calibration_rows`.

        Raises:
            DataError: the train rows are missing.
        """
        run, manifest = self.run, self.manifest
        count = count or self.settings.calibration_rows
        if "train" not in manifest.data.splits:
            return open_encoder(run, manifest).encode(sample_rows(manifest.input)[:count])
        try:
            rows = _rows(run, manifest, "train", count)
        except DataError:
            kept = kept_source(run, manifest, "train")
            if kept is None:
                raise
            examples = list(kept.rows())
            rows = sample_evenly(examples, len(examples), count)
        return open_encoder(run, manifest).encode(list(rows.values()))


def _rows(run: Path, manifest: Manifest, split: str, most: int) -> dict[int, Example]:
    """Return up to `most` rows of a split, sampled evenly, by their row numbers from 1."""
    source = split_source(run, manifest, split)
    rows = sample_evenly(source.rows(), manifest.data.splits[split].rows, most)
    if not rows:
        message = f"{source.path} has no rows: a parity check needs at least one"
        raise DataError(message)
    return rows


def _unlabelled_rows(
    manifest: Manifest, settings: ExportSettings, encoder: TextEncoder
) -> list[Row]:
    if settings.unlabelled is None:
        return []
    source = Source(path=settings.unlabelled, reading=manifest.data.reading).unlabelled()
    count = sum(1 for _ in source.rows())
    rows = sample_evenly(source.rows(), count, settings.dev_rows)
    examples = [*fit_examples(rows.values(), manifest.input)]
    return encoded_rows(encoder, (f"unlabelled row {number}" for number in rows), examples)


def spread_over_groups(
    groups_N: Sequence[Hashable], lengths_N: Sequence[int], most: int
) -> list[int]:
    """Return up to `most` indices that cover all groups and, in each group, all lengths.

    Small groups are complete; the others have the same number of inputs. If there are more groups
    than `most`, the smallest are left out.
    """
    members: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(groups_N)), key=lengths_N.__getitem__):
        members.setdefault(groups_N[index], []).append(index)
    chosen: list[int] = []
    for rank, group in enumerate(sorted(members.values(), key=len)):
        share = min(len(group), (most - len(chosen)) // (len(members) - rank))
        places = np.linspace(0, len(group) - 1, share).round().astype(np.int64)
        chosen += [group[place] for place in places]
    return sorted(chosen)


def graph_feeds(
    graph: Path, run_rows: RunRows, encodings: Sequence[Encoding], batch: int = 8
) -> list[dict[str, NDArray[np.int64]]]:
    """Return the input arrays of calls with `batch` encodings each, by the graph's input names.

    Args:
        graph: an ONNX file of `checkpoint_to_onnx`.
        run_rows: the run, which determines padding and entity spans.
        encodings: the inputs, in order.
        batch: number of inputs per call.
    """
    collate = Collate(
        layout=layout_of([input_.name for input_ in _inputs(graph)]),
        padding=Padding.of(run_rows.manifest.input),
        spans=run_rows.manifest.model.takes_spans,
        first_only=reads_first_only(graph),
        whole=True,
    )
    return [
        feed.arrays
        for start in range(0, len(encodings), batch)
        for feed in collate.feeds(encodings[start : start + batch])
    ]


def reads_first_only(graph: Path) -> bool:
    """Return whether a packed graph reads only the first token of each text; True for others."""
    index = _text_index(graph)
    return index is None or index.type.tensor_type.shape.dim[1].dim_value == 1


def _text_index(graph: Path) -> onnx.ValueInfoProto | None:
    """Return the input with the positions of the texts in packed rows; None if padded."""
    return next((input_ for input_ in _inputs(graph) if input_.name == "text_index"), None)


def _inputs(graph: Path) -> Sequence[onnx.ValueInfoProto]:
    inputs: Sequence[onnx.ValueInfoProto] = onnx.load(graph, load_external_data=False).graph.input
    return inputs
