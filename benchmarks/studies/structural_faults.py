"""Plant faults in the exporter and store which engines the parity check refuses.

`python -m pipework.benchmarks.studies.structural_faults --runs RUN...` exports BERT runs
with each fault of `planted_faults` as each engine, into copies of the run folders. These exports
must be refused; a correct exporter must pass. A process for each CPU exports with one thread; only
engines with a fault of their own, which can depend on the number of threads, use all CPUs.
The outcomes of each export are kept next to --out until the result is stored: the same command
continues at the same commit.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from itertools import chain, repeat
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
from pydantic import TypeAdapter

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.planted_faults import (
    ENGINE_FAULTS,
    FAULTS,
    LOWERED_FAULTS,
    NO_FAULT,
    FaultyExporter,
)
from pipework.benchmarks.studies.records.grid_results import Cell, GridResult, column_of
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings
from pipework.export.plan import all_variants
from pipework.export.run import export
from pipework.git import CHECKOUT, git_commit
from pipework.machine import computes_bf16
from pipework.progress import NullProgress, Progress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.files import write_atomically
from pipework.run_folder.manifest import read_manifest, write_manifest

SETTINGS = ExportSettings(speed_s=0, dev_rows=200, calibration_rows=100)
# Engines that any machine with a processor computes.
VARIANTS = tuple(
    variant
    for variant in all_variants()
    if variant.format in {"onnx", "openvino"}
    and variant.layout is not Layout.VARLEN
    and (variant.precision is not Precision.BF16 or computes_bf16())
)
LOWER = tuple(variant for variant in VARIANTS if variant.precision is not Precision.FP32)
NONE = "none"
CELLS = TypeAdapter(list[Cell])
EXPORTERS = {NONE: NO_FAULT, **FAULTS, **LOWERED_FAULTS, **ENGINE_FAULTS}
OUTCOME = re.compile(
    r"^(?P<engine>\S+) failed the parity check( \((?P<limits>.*?)\)|: the (?P<node>node) )"
    r"|^the (?P<tokens>token ids) of the dev rows differ|^$"
)


class FailureNotes(NullProgress):
    """Collects the errors of engines by name, from the lines that an export reports."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def note(self, line: str) -> None:
        """Read the name of a failed engine and its error."""
        if (parts := line.split(": ", 2))[0] == "failed":
            self.errors[parts[1]] = parts[2]


def planted(run: Path, finished: Path, fault: str, variants: Sequence[Variant]) -> list[Cell]:
    """Return the outcomes of an export from the folder of finished exports, or export and add."""
    labels = [variant.label for variant in variants]
    key = f"{git_commit(CHECKOUT)} {read_manifest(run)} {run.name} {fault} {labels}"
    path = finished / f"{sha256(key.encode()).hexdigest()}.json"
    if not path.exists():
        write_atomically(path, CELLS.dump_json(plant(run, fault, variants)))
    return CELLS.validate_json(path.read_bytes())


def plant(run: Path, fault: str, variants: Sequence[Variant]) -> list[Cell]:
    """Export a copy of a run with a fault of `EXPORTERS`, as each engine."""
    notes, exporter = FailureNotes(), EXPORTERS[fault]
    with tempfile.TemporaryDirectory(prefix="pipework-fault-") as name:
        copy = Path(name) / "run"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("engines"))
        write_manifest(copy, read_manifest(copy).model_copy(update={"engines": ()}))
        if exporter.run is not None:
            exporter.run(copy)
        try:
            with exporter.engines():
                export(copy, notes, variants, settings=SETTINGS, builder=exporter)
        except CheckFailedError as error:  # of the last engine, or of the whole export
            notes.errors = {variant.label: str(error) for variant in variants} | notes.errors
    return [
        _outcome(run, fault, variant, notes.errors.get(variant.label, "")) for variant in variants
    ]


def _outcome(run: Path, fault: str, variant: Variant, message: str) -> Cell:
    """Return the outcome of an engine from the error of its export, or ""."""
    match = OUTCOME.search(message)
    if match is None:  # the fault breaks the export itself
        raise CheckFailedError(message, f"correct the fault {fault!r} of this study")
    column, packed = column_of(variant)
    limits = match["limits"] or match["tokens"] or match["node"]
    earlier = match["engine"] not in {None, variant.label}
    refused = "graph refused" if earlier else "refused"
    return Cell(
        row=(run.name, fault),
        column=column,
        packed=packed,
        text=refused if limits else "passed",
        reason=limits,
    )


def exported_together(exporter: FaultyExporter) -> list[tuple[Variant, ...]]:
    """Return the engines of each export: a float32 engine that fails refuses the later ones."""
    if exporter.wrong_call is not None:
        return [LOWER, *((variant,) for variant in VARIANTS if variant not in LOWER)]
    return [LOWER if exporter.lowered else VARIANTS]


def plant_all(run: Path, finished: Path, progress: Progress) -> Iterator[Cell]:
    """Export a run with each fault that is not in the folder of finished exports."""
    exports = [
        (fault, variants)
        for fault, exporter in EXPORTERS.items()
        for variants in exported_together(exporter)
    ]
    alone = [export for export in exports if EXPORTERS[export[0]].wrong_call is not None]
    pooled = [export for export in exports if export not in alone]
    processes, cpus = get_context("spawn"), sorted(os.sched_getaffinity(0))
    free = processes.SimpleQueue()
    for cpu in cpus:
        free.put(cpu)
    with (
        progress.stage(run.name, len(exports), "exports"),
        ProcessPoolExecutor(len(cpus), processes, _use_one_cpu, (free,)) as pool,
    ):
        done = chain(
            pool.map(planted, repeat(run), repeat(finished), *zip(*pooled, strict=True)),
            (planted(run, finished, *export) for export in alone),
        )
        for cells in done:
            progress.advance(1)
            for cell in cells:
                progress.note(f"{run.name}, {cell.row[1]}, {cell.column}: {cell.text}")
            yield from cells


def _use_one_cpu(free: "SimpleQueue[int]") -> None:
    os.sched_setaffinity(0, {free.get()})
    torch.set_num_threads(1)


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Plant all faults and store the outcomes; return 3 if a fault passed or no fault failed."""
    parser = study_parser("structural_faults", __doc__)
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs of BERT models")
    options = parser.parse_args(arguments)
    finished = options.out.with_suffix(".finished")
    if (git_commit(CHECKOUT) or "-dirty").endswith("-dirty"):  # the code may have changed
        shutil.rmtree(finished, ignore_errors=True)

    def measured(progress: Progress) -> GridResult:
        finished.mkdir(exist_ok=True)
        outcomes = [cell for run in options.runs for cell in plant_all(run, finished, progress)]
        return GridResult(
            experiment="faults",
            names=("run", "fault"),
            cells=tuple(outcomes),
            command=command(parser, options),
            provenance=provenance(),
        )

    outcomes = stored(options.out, measured).cells
    shutil.rmtree(finished)
    wrong = [outcome for outcome in outcomes if (outcome.text == "passed") != (NONE in outcome.row)]
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
