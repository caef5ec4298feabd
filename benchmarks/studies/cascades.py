"""Measure a cascade at several limits: `python -m pipework.benchmarks.studies.cascades`.

A copy of the run gets the first stage at each limit, as by `pipe export RUN --to cascade`. The
share of other labels and the change of the score are measured on a split that does not prove the
limits. A server of the cascade and a server of the engine alone get the texts of this split in
turns.

Shapes: N rows of the split.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.comparison import ComparedLevel
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.run_against import bench_against
from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.records.cascade_results import CascadePoint, CascadesResult
from pipework.benchmarks.studies.script import report_errors, stored, study_parser
from pipework.data.splits import split_source
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.cascade import export_cascade
from pipework.export.config import CascadeSettings
from pipework.export.first_stage import MeasuredStages, Stage
from pipework.progress import Progress
from pipework.run_folder.cascade import FOLDER, CascadeRecord
from pipework.run_folder.manifest import LockedRun, read_classifier
from pipework.tasks.kinds import metric_in_words

LIMITS = (0.002, 0.005, 0.01, 0.02)
TEXTS = 8  # per request
CLIENTS = (1, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A cascade to measure.

    Attributes:
        run: the run of the engine.
        name: its name in the table.
        first: the run of the first stage; None for the linear model of the run.
        first_name: its name in the table.
        rows: file whose rows prove the limits; None for dev.
        split: the split that is measured.
        seconds: the time of each server for each number of clients.
        command: commands that reproduce the result.
    """

    run: Path
    name: str
    first: Path | None
    first_name: str
    rows: Path | None
    split: str
    seconds: float
    command: Sequence[str]

    def measured(self, progress: Progress) -> CascadesResult:
        """Measure the cascade at each limit.

        Raises:
            PipeError: the runs cannot be a cascade, the rows show no limit, the split proves the
                limits, or a server does not start.
        """
        with tempfile.TemporaryDirectory(prefix="pipework-cascades-") as folder:
            copy = Path(shutil.copytree(self.run, Path(folder) / "run"))
            first = self.first and Path(shutil.copytree(self.first, Path(folder) / "first"))
            records, refused = self._exported(copy, first, progress)
            if records[0].source == self.split:
                message = f"the rows of {self.split} prove the limits"
                raise ConfigError(message, "measure other rows: --split, or --rows FILE")
            manifest = read_classifier(copy)
            rows = [*split_source(copy, manifest, self.split).rows()]
            stages = Stage.of(copy / FOLDER, threads=1), Stage.of(copy)
            found = MeasuredStages.of(*stages, rows, progress)
            points = []
            score = 0.0
            for record in records:
                answered_N = found.scores_N >= record.min_score
                score, gain = found.score_and_gain(manifest.task, rows, self.split, answered_N)
                points.append(
                    CascadePoint(
                        max_difference=record.max_difference,
                        answered=float(answered_N.mean()),
                        differing=float((answered_N & found.differs_N).mean()),
                        gain=(100 * gain[0], 100 * gain[1], 100 * gain[2]),
                        levels=self._served(copy, record, progress),
                    )
                )
        return CascadesResult(
            dataset=self.name,
            first=self.first_name,
            engine=records[0].engine,
            split=self.split,
            rows=len(rows),
            metric=metric_in_words(manifest.task.metric),
            score=100 * score,
            source=records[0].source,
            proof_rows=records[0].rows,
            encode_us=found.encode_us,
            first_us=found.text_us[0],
            engine_us=found.text_us[1],
            texts_per_request=TEXTS,
            points=tuple(points),
            refused=refused,
            commands=tuple(self.command),
            provenance=provenance(),
        )

    def _exported(
        self, run: Path, first: Path | None, progress: Progress
    ) -> tuple[list[CascadeRecord], dict[str, str]]:
        """Return the cascades of the limits that the rows show, and why the others are refused."""
        records: list[CascadeRecord] = []
        refused: dict[str, str] = {}
        for limit in LIMITS:
            settings = CascadeSettings(max_difference=limit, rows=self.rows)
            try:
                with LockedRun.open(run) as locked:
                    record = export_cascade(locked, first, settings, progress)
            except CheckFailedError as error:
                refused[f"{limit:.1%}"] = error.hint
            else:
                records += [record] if record else []
        if not records:
            message = "the rows show none of the limits"
            raise CheckFailedError(message, "; ".join(refused.values()))
        return records, refused

    def _served(
        self, run: Path, record: CascadeRecord, progress: Progress
    ) -> tuple[ComparedLevel, ...]:
        """Compare a server of a cascade with a server of its engine alone."""
        with LockedRun.open(run) as locked:
            locked.record_cascade(record)
            source = split_source(run, locked.manifest, self.split)
        plan = BenchPlan(source=source, batch=TEXTS, concurrencies=CLIENTS, duration_s=self.seconds)
        with running_server(run, "--engine", record.engine) as alone, running_server(run) as url:
            return bench_against(url, alone, plan, progress).levels


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cascades of a run and store the result; return the exit code."""
    parser = study_parser("cascades", __doc__, run=True, commands=True)
    parser.add_argument("--first", type=Path, help="run of the first stage")
    parser.add_argument("--first-name", default="the linear model", help="its name in the table")
    parser.add_argument("--rows", type=Path, help="file whose rows prove the limits")
    parser.add_argument("--split", default="test", help="split that is measured")
    parser.add_argument("--seconds", type=float, default=5, help="seconds per server and load")
    options = vars(parser.parse_args(arguments))
    out = options.pop("out")
    for row in stored(out, Study(**options).measured).table_rows():
        sys.stdout.write(f"{', '.join(row)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
