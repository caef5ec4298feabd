"""Measure a server under load: `python -m pipework.benchmarks.studies.serving RUN NAME --out FILE`.

The server is `pipe serve RUN`, a separate process on the same processors. The study measures in
turns the engine alone and closed loops: several texts per request, single texts, and single texts
of as many clients as the first load has texts in flight. Then it measures single texts in open
loops at twice the peak rate, immediately afterwards at half the peak, and at half the peak. With
--minutes it also samples the server's memory under texts of all lengths.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from threading import Event, Thread

import numpy as np

from pipework import console
from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop, open_loop
from pipework.benchmarks.load.offline import measure_engine
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals, Level
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.records.serving_results import Memory, ServingResult
from pipework.benchmarks.studies.script import report_errors
from pipework.benchmarks.targets import Target, target
from pipework.errors import NotReadyError
from pipework.progress import Progress
from pipework.run_folder.files import check_writable
from pipework.run_folder.manifest import read_classifier
from pipework.serve.config import QueueSettings
from pipework.serve.engines import choose_engine, open_proven
from pipework.text.encoding import open_encoder

SEVERAL = 8  # texts per request
CLIENTS_SINGLE, CLIENTS_SEVERAL = 64, 16
CLIENTS_MORE = SEVERAL * CLIENTS_SEVERAL  # with single texts: as many texts in flight
TURNS = 4
PAGE_KIB = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadPlan:
    """The run, its name in the table, seconds per level, and minutes of memory sampling."""

    run: Path
    name: str
    seconds: float
    minutes: float

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that reproduces the result, without paths of this machine."""
        words = ["python", "-m", "pipework.benchmarks.studies.serving", "RUN", self.name]
        words += ["--seconds", f"{self.seconds:g}"]
        return (*words, *(["--minutes", f"{self.minutes:g}"] if self.minutes else []))


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.serving", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines")
    parser.add_argument("name", help="name of the model in the table")
    parser.add_argument("--seconds", type=float, default=15, help="seconds per level")
    parser.add_argument("--minutes", type=float, default=0, help="minutes of memory sampling")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options = parser.parse_args(arguments)
    plan = LoadPlan(
        run=options.run, name=options.name, seconds=options.seconds, minutes=options.minutes
    )
    progress = console.progress()
    try:
        check_writable(options.out)
        result = measure(plan, progress)
        write_result(options.out, result)
    finally:
        progress.close()
    console.print_line(result.model_dump_json(indent=2, exclude={"provenance"}))
    return 0


def measure(plan: LoadPlan, progress: Progress) -> ServingResult:
    """Start the server, apply the loads, and return the measurements.

    Raises:
        PipeError: the run cannot be served.
    """
    single, several = (Workload.synthetic(texts_per_request=n, seed=0) for n in (1, SEVERAL))
    engine_rate, batch_ms = _engine_alone(plan, single)
    offline = [engine_rate]
    several_levels, single_levels, more_levels = list[Level](), list[Level](), list[Level]()
    with running_server(plan.run) as process:
        server = target(process.url)
        # The speed of a machine drifts, so values that are compared are measured in turns.
        for _ in range(TURNS):
            several_levels.append(_closed(server, several, CLIENTS_SEVERAL, plan, progress))
            single_levels.append(_closed(server, single, CLIENTS_SINGLE, plan, progress))
            more_levels.append(_closed(server, single, CLIENTS_MORE, plan, progress))
            offline.append(_engine_alone(plan, single)[0])
        peak = _closed(server, single, CLIENTS_SINGLE, plan, progress)
        rate = peak.texts_per_s
        double = _open(server, single, 2 * rate, plan.seconds, 1, progress)
        after = _open(server, single, rate / 2, plan.seconds, 2, progress)
        single_levels += [peak, _closed(server, single, CLIENTS_SINGLE, plan, progress)]
        half = _open(server, single, _mean(single_levels) / 2, plan.seconds, 0, progress)
        memory = _memory(server, process.pid, plan, rate / 2, progress) if plan.minutes else None
    offline.append(_engine_alone(plan, single)[0])
    manifest = read_classifier(plan.run)
    return ServingResult(
        model=plan.name,
        engine=choose_engine(manifest).name,
        texts=single.source,
        batch_tokens=QueueSettings().batch_tokens,
        offline_texts_per_s=tuple(offline),
        batch_ms=batch_ms,
        several_texts_per_s=round(_mean(several_levels), 2),
        several=SEVERAL,
        single_texts_per_s=round(_mean(single_levels), 2),
        more_clients=CLIENTS_MORE,
        more_clients_texts_per_s=round(_mean(more_levels), 2),
        half=half,
        double=double,
        peak=peak,
        after=after,
        memory=memory,
        command=plan.command,
        provenance=provenance(),
    )


def _engine_alone(plan: LoadPlan, workload: Workload) -> tuple[float, float]:
    """Return the engine's texts/s and the median milliseconds of one of its batches."""
    manifest = read_classifier(plan.run)
    encoder = open_encoder(plan.run, manifest)
    tokens = np.mean([len(encoding) for encoding in encoder.encode(workload.examples)])
    batch = max(1, int(QueueSettings().batch_tokens / tokens))
    with open_proven(plan.run, manifest) as engine:
        levels = [
            measure_engine(
                "engine",
                engine,
                encoder,
                workload.examples,
                batch=batch,
                duration_s=plan.seconds / 2,
            )
            for _ in range(2)  # in the first the runtime compiles for the shapes
        ]
    return levels[-1].texts_per_s, levels[-1].latency_ms.p50


def _closed(
    server: Target, workload: Workload, clients: int, plan: LoadPlan, progress: Progress
) -> Level:
    """Return the median by texts/s of three runs, each a third of the time."""
    third_s = plan.seconds / 3
    spec = LoadSpec(
        workload=workload,
        load=OfferedLoad(concurrency=clients),
        duration=LevelDuration(warmup_s=plan.seconds / 15, duration_s=third_s, limit_s=third_s),
    )
    levels = [closed_loop(server, spec, progress).level for _ in range(3)]
    failed = [level.errors for level in levels if level.errors]
    if failed:
        message = f"requests failed: {failed[0]}"
        raise NotReadyError(message)
    return sorted(levels, key=lambda level: level.texts_per_s)[len(levels) // 2]


def _mean(levels: Sequence[Level]) -> float:
    """Return the mean texts/s."""
    return mean(level.texts_per_s for level in levels)


def _open(
    server: Target, workload: Workload, rate: float, seconds: float, seed: int, progress: Progress
) -> Level:
    spec = LoadSpec(
        workload=workload,
        load=OfferedLoad(rate=rate, arrivals=Arrivals.POISSON),
        duration=LevelDuration(warmup_s=0.0, duration_s=seconds, limit_s=seconds),
    )
    return open_loop(server, spec, progress, seed=seed).level


def _memory(server: Target, pid: int, plan: LoadPlan, rate: float, progress: Progress) -> Memory:
    """Send texts of all lengths for minutes and sample the server's resident memory."""
    mixed = Workload.synthetic(texts_per_request=1, seed=7, mean_words=60)
    samples: list[float] = []
    ended = Event()

    def sample() -> None:
        while not ended.wait(1):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            samples.append(pages * PAGE_KIB / 1024)

    watcher = Thread(target=sample)
    watcher.start()
    try:
        seconds = plan.minutes * 60
        _open(server, mixed, rate / 3, seconds, 9, progress)
    finally:
        ended.set()
        watcher.join()
    first = samples[min(60, len(samples) - 1)]
    return Memory(
        minutes=plan.minutes,
        after_first_minute_mib=round(first, 1),
        at_end_mib=round(samples[-1], 1),
        peak_mib=round(max(samples), 1),
    )


if __name__ == "__main__":
    sys.exit(main())
