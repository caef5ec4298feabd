"""Measure front processes: `python -m pipework.benchmarks.studies.workers RUN NAME --out FILE`.

Servers of one process and of several are measured in turns, on the processors of their clients:
with the engine of the run, and with an engine that returns zeros at once, which shows how many
requests the processes around it can handle.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from pipework import console
from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.pipe_serve import ServerProcess, running_server
from pipework.benchmarks.studies.records.experiment_results import (
    NO_ENGINE,
    WorkersLevel,
    WorkersLoad,
    WorkersResult,
)
from pipework.benchmarks.studies.script import command, report_errors
from pipework.benchmarks.targets import target
from pipework.closeable import Closeable
from pipework.errors import NotReadyError
from pipework.progress import Progress
from pipework.run_folder.change_limits import ChangeLimits
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.files import check_writable
from pipework.run_folder.manifest import Manifest, read_classifier
from pipework.scoring.evaluation import Engine
from pipework.serve.config import QueueSettings, ServeSettings
from pipework.serve.engines import choose_engine
from pipework.serve.models import open_models
from pipework.serve.run import serve
from pipework.serve.sockets import BoundAddress, ListenAddress
from pipework.serve.workers.supervisor import serve_with_workers
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

MODULE = "pipework.benchmarks.studies.workers"
# Front processes and engine processes of each server; 0: a server of one process.
SERVERS = ((0, 0), (1, 1), (2, 1), (3, 1), (2, 2))
LOADS = ((1, 64), (8, 16))  # texts per request, clients
ENGINE_PROCESSES = "pipe-engine-"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersPlan:
    """The run, seconds per level, and the number of turns."""

    run: Path
    seconds: float
    turns: int


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and store the result, or serve with an engine of zeros; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run folder with engines")
    parser.add_argument("--name", default="sample", help="name of the model in the table")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds per level and turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options = parser.parse_args(arguments)
    plan = WorkersPlan(run=options.run, seconds=options.seconds, turns=options.turns)
    progress = console.progress()
    try:
        check_writable(options.out)
        loads = [measure(plan, shape, progress, engine=True) for shape in LOADS]
        loads += [measure(plan, shape, progress, engine=False) for shape in LOADS]
    finally:
        progress.close()
    result = WorkersResult(
        model=options.name,
        loads=tuple(loads),
        command=command(parser, options),
        provenance=provenance(),
    )
    write_result(options.out, result)
    console.print_line(result.model_dump_json(indent=2, exclude={"provenance"}))
    return 0


def measure(
    plan: WorkersPlan, shape: tuple[int, int], progress: Progress, *, engine: bool
) -> WorkersLoad:
    """Measure servers of all numbers of processes in turns.

    Args:
        plan: the plan.
        shape: texts per request, and clients.
        progress: shows the levels.
        engine: whether the engine of the run computes; else one that returns zeros.

    Raises:
        PipeError: the run cannot be served, or a request failed.
    """
    texts, clients = shape
    spec = LoadSpec(
        workload=Workload.synthetic(texts_per_request=texts, seed=0),
        load=OfferedLoad(concurrency=clients),
        duration=LevelDuration(warmup_s=1.0, duration_s=plan.seconds, limit_s=plan.seconds),
    )
    samples: dict[tuple[int, int], list[tuple[float, float, float]]] = {s: [] for s in SERVERS}
    for turn in range(plan.turns):
        for processes in SERVERS if turn % 2 == 0 else reversed(SERVERS):
            with _server(plan.run, processes, engine=engine) as server:
                samples[processes].append(_level(server, spec, progress))
    return WorkersLoad(
        engine=choose_engine(read_classifier(plan.run)).name if engine else NO_ENGINE,
        texts_per_request=texts,
        clients=clients,
        levels=tuple(
            WorkersLevel(
                fronts=fronts,
                engines=engines,
                requests_per_s=tuple(round(rate, 1) for rate, _, _ in found),
                front_us=round(median(front for _, front, _ in found), 1),
                engine_us=round(median(engine_us for _, _, engine_us in found), 1),
            )
            for (fronts, engines), found in samples.items()
        ),
    )


def _server(
    run: Path, processes: tuple[int, int], *, engine: bool
) -> AbstractContextManager[ServerProcess]:
    program = (sys.executable, "-P", "-c", f"from {MODULE} import serve_run; serve_run()")
    return running_server(run, *map(str, (*processes, int(engine))), program=program)


def _level(server: ServerProcess, spec: LoadSpec, progress: Progress) -> tuple[float, float, float]:
    """Return requests/s, and microseconds of CPU time per request: front and engine processes."""
    main_process = psutil.Process(server.pid)
    processes = [main_process, *main_process.children()]
    before = [_cpu_s(process) for process in processes]
    level = closed_loop(target(server.url), spec, progress).level
    if level.errors:
        message = f"requests failed: {level.errors}"
        raise NotReadyError(message)
    spent = [_cpu_s(process) - earlier for process, earlier in zip(processes, before, strict=True)]
    # The CPU time includes that of the warm-up.
    requests = level.requests_per_s * (spec.duration.duration_s + spec.duration.warmup_s)
    by_process = zip(spent, processes, strict=True)
    engine_s = sum(s for s, p in by_process if p.name().startswith(ENGINE_PROCESSES))
    return (
        level.requests_per_s,
        1e6 * (sum(spent) - engine_s) / requests,
        1e6 * engine_s / requests,
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class ZeroEngine(Closeable):
    """An engine that returns zeros at once."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return zeros [N, C]."""
        return Outputs.of(np.zeros((len(encodings), self._classes), np.float32))

    def close(self) -> None:
        """Do nothing."""


class ZeroOpener:
    """Opens engines that return zeros."""

    instances = 1

    def __init__(self, limits: ChangeLimits) -> None:
        """Take the limits, which do not matter."""

    def first(
        self, run: Path, manifest: Manifest, _: str | None, __: int | None
    ) -> tuple[EngineRecord, Engine]:
        """Return the default engine's record, and an engine of zeros."""
        record = choose_engine(manifest)
        return record, self.again(run, manifest, record.name, None)

    def again(self, _: Path, manifest: Manifest, __: str, ___: int | None) -> Engine:
        """Return an engine of zeros."""
        return ZeroEngine(len(manifest.task.labels))


def serve_run() -> None:
    """Serve as `pipe serve` does; arguments: RUN --port P --grpc-port P FRONTS ENGINES ENGINE."""
    run, _, port, _, grpc_port, fronts, engines, engine = sys.argv[1:]
    if not int(engine):
        vars(open_models)["LocalOpener"] = ZeroOpener
    start = partial(serve_with_workers, workers=int(fronts)) if int(fronts) else serve
    settings = ServeSettings(queue=QueueSettings(processes=int(engines) or None))
    address = ListenAddress(port=int(port), grpc_port=int(grpc_port))
    start(Path(run), settings, address=address, ready=_ready)


def _ready(address: BoundAddress) -> None:
    console.print_line(f"serving on {address}")


if __name__ == "__main__":
    sys.exit(main())
