"""Check the engines of an export against the checkpoint, and the graphs that they are made from."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from pipework.errors import CheckFailedError, RunFolderError
from pipework.export.build import build_float_engine, float_variant
from pipework.export.diagnosis.refusal import (
    EngineCandidate,
    engine_error,
    parity_error,
    remove_failed_export,
)
from pipework.export.parity.case import EngineFailedError
from pipework.export.parity.prove import ReferenceLogits, prove
from pipework.export.ranking import ENGINES
from pipework.export.rows.run_rows import RunRows, spread_over_groups
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.engine_record import Parity, Precision, Tolerance, Variant
from pipework.run_folder.files import file_digest
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines import open_engine, server_engines
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.runtimes import runtime_of
from pipework.tasks.outputs import Outputs

REFERENCE_DEV_ROWS = 256  # large enough that a single changed label is within tolerance


class ParityChecker:
    """Checks the engines of one export against the checkpoint.

    A lower precision hides faults of the float32 graph that it is converted from, so this graph is
    checked first, with the limits of float32: with OpenVINO for its engines, which OpenVINO
    compiles from a converted graph, else with onnxruntime. Graphs with the same content are checked
    once; the error of a wrong graph is raised for each engine.

    Attributes:
        run_rows: the run and the rows.
    """

    def __init__(self, run_rows: RunRows, expected: ReferenceLogits, progress: Progress) -> None:
        self.run_rows = run_rows
        self._expected = expected
        self._progress = progress
        self._graphs: dict[tuple[str, str], CheckFailedError | None] = {}
        self._faults: dict[str, CheckFailedError] = {}

    def tolerance(self, variant: Variant, int8_layers: frozenset[str]) -> Tolerance:
        """Return the limits of an engine with these layers in int8."""
        return self._expected.tolerance(self.run_rows, variant, int8_layers)

    def check(
        self, candidate: EngineCandidate, opener: Callable[..., CollatedEngine], float_digest: str
    ) -> Parity:
        """Return the parity record of an engine that passes the check.

        Args:
            candidate: the engine.
            opener: opens it.
            float_digest: digest of the float32 graph that it was made from.

        Raises:
            CheckFailedError: the engine's logits differ from the checkpoint's, or it fails.
            NoGpuError: the engine needs a GPU that is not available.
        """
        if candidate.variant.precision is not Precision.FP32:
            return self._check(candidate, opener)
        label = candidate.variant.label
        try:
            parity = self._check(candidate, opener)
        except CheckFailedError as error:
            self._graphs[label, float_digest] = self._faults[label] = error
            raise
        self._graphs[label, float_digest] = None  # only now: another error is not a result
        return parity

    def _check(self, candidate: EngineCandidate, opener: Callable[..., CollatedEngine]) -> Parity:
        try:
            result = prove(
                self.run_rows,
                self._expected,
                opener=opener,
                tolerance=self.tolerance(candidate.variant, candidate.int8_layers),
                progress=self._progress,
            )
        except (EngineFailedError, RunFolderError) as error:  # it does not load or run
            raise engine_error(candidate, error) from error
        if not result.parity.passed:
            raise parity_error(candidate, result)
        remove_failed_export(candidate)
        runtime = runtime_of(candidate.variant.format).version()
        threads = tuple(sorted({server_engines(on_gpu=False)[1], cpu_limit()}))
        return result.parity.model_copy(update={"runtime": runtime, "threads": threads})

    def raise_known_fault(self, variant: Variant) -> None:
        """Raise the error of the float32 graph if it has failed for the same format and layout."""
        if fault := self._faults.get(float_variant(variant).label):
            raise fault

    def check_float_graph(self, variant: Variant, graph: Path) -> None:
        """Check the float32 graph that `variant` will be converted from.

        Raises:
            CheckFailedError: its logits differ from the checkpoint's, or it fails.
        """
        digest, checked = file_digest(graph), float_variant(variant)
        if (checked.label, digest) not in self._graphs:
            self._progress.note(
                f"{variant.label}: checking the float32 graph before it is converted"
            )
            folder = self.run_rows.run / ENGINES / checked.label / "float-graph"
            folder.mkdir(parents=True)
            candidate = EngineCandidate(run_rows=self.run_rows, variant=checked, folder=folder)
            try:
                path = build_float_engine(checked, graph, folder)
                opener = partial(open_engine, path, checked, self.run_rows.manifest)
                self.check(candidate, opener, digest)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        if fault := self._graphs[checked.label, digest]:
            raise fault

    def reference_rows(self) -> ReferenceRows:
        """Return the edge cases and dev rows of all labels and lengths, with their logits."""
        edge, dev = self._expected.rows.edge, self._expected.rows.dev
        labels_RC = self.run_rows.manifest.task.predicted_labels(dev.expected.values)
        labels = Outputs(labels_RC.astype(np.float32), dev.expected.offsets)
        chosen = spread_over_groups(
            [labels.part(row, row + 1).values.tobytes() for row in range(len(dev.rows))],
            [len(row.encoding) for row in dev.rows],
            REFERENCE_DEV_ROWS,
        )
        rows = [*edge.rows, *(dev.rows[index] for index in chosen)]
        return ReferenceRows(
            encodings=[row.encoding for row in rows],
            outputs=Outputs.concatenate([edge.expected, dev.expected.take(chosen)]),
        )
