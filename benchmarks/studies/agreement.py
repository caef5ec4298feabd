"""Compare `pipe bench` with perf_analyzer: `python -m pipework.benchmarks.studies.agreement`.

Both load generators measure one `pipe serve RUN` in turns, with the same texts over the same
protocol. The server is also stopped once for half a second: an open loop measures the delay, a
closed loop omits it (coordinated omission).

perf_analyzer is NVIDIA's: https://github.com/triton-inference-server/perf_analyzer
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import httpx

from pipework import console
from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop, open_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.records.serving_results import (
    AgreementResult,
    GeneratorReport,
    Pair,
    Stall,
)
from pipework.benchmarks.studies.script import report_errors
from pipework.benchmarks.targets import target
from pipework.errors import CheckFailedError
from pipework.progress import Progress
from pipework.run_folder.files import check_writable
from pipework.run_folder.manifest import read_classifier

LOADS = (("http", 1, 1), ("http", 1, 8), ("http", 8, 4), ("grpc", 1, 8))
ROUNDS, WINDOWS = 3, 3
STALL_S, QUIET_SHARE = 0.5, 0.3  # the open loop's rate, as a share of one client's rate
START_S, TIMES = 60.0, 10.0  # perf_analyzer's startup, and how often it may repeat a measurement
POLL_S = 0.05
MICRO = 1e-3  # microseconds in milliseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadGenerators:
    """The two load generators with the server that they measure.

    Attributes:
        model: the served model's name.
        addresses: HOST:PORT of the server by protocol.
        program: the perf_analyzer executable.
        seconds: duration of each measurement.
        progress: reports the measurements of `pipe bench`.
    """

    model: str
    addresses: dict[str, str]
    program: str
    seconds: float
    progress: Progress

    def url(self, wire: str) -> str:
        """Return the URL of the model."""
        path = f"/{self.model}" if wire == "grpc" else f"/v2/models/{self.model}"
        return f"{wire}://{self.addresses[wire]}{path}"

    def pipe_bench(self, wire: str, workload: Workload, clients: int) -> GeneratorReport:
        """Measure a closed loop with `pipe bench`.

        Raises:
            CheckFailedError: a request failed.
        """
        spec = LoadSpec(
            workload=workload,
            load=OfferedLoad(concurrency=clients),
            duration=LevelDuration(
                warmup_s=min(1.0, self.seconds), duration_s=self.seconds, limit_s=self.seconds
            ),
        )
        level = closed_loop(target(self.url(wire)), spec, self.progress).level
        times = level.latency_ms
        if times is None or level.errors:
            message = f"requests failed: {level.errors}"
            raise CheckFailedError(message)
        return GeneratorReport(
            texts_per_s=level.texts_per_s, p50_ms=times.p50, p95_ms=times.p95, p99_ms=times.p99
        )

    def perf_analyzer(self, wire: str, workload: Workload, clients: int) -> GeneratorReport:
        """Measure a closed loop with perf_analyzer: three windows, without its stability check.

        Raises:
            CheckFailedError: perf_analyzer fails.
        """
        with TemporaryDirectory() as folder:
            data, report = Path(folder) / "data.json", Path(folder) / "report.csv"
            data.write_text(json.dumps(_inputs(workload)), encoding="utf-8")
            command = [self.program, "-m", self.model, "-u", self.addresses[wire], "-i", wire]
            command += ["--input-data", str(data), "--concurrency-range", f"{clients}"]
            command += ["-b", f"{workload.texts_per_request}", "-f", str(report)]
            command += ["-p", f"{1000 * self.seconds / WINDOWS:.0f}"]
            command += ["--max-trials", f"{WINDOWS}", "--stability-percentage", "999"]
            try:
                done = subprocess.run(  # noqa: S603  (the caller's choice)
                    command,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=START_S + TIMES * self.seconds,
                )
            except subprocess.TimeoutExpired as error:
                message = f"perf_analyzer did not finish within {error.timeout:g} s"
                raise CheckFailedError(message, "increase --seconds") from error
            except OSError as error:
                message = f"{self.program} cannot be started: {error.strerror}"
                raise CheckFailedError(message, "set its path with --perf-analyzer") from error
            if done.returncode or not report.is_file():
                message = f"perf_analyzer failed with exit code {done.returncode}"
                output = done.stdout + done.stderr
                raise CheckFailedError(message, "its output is above this line", output)
            return read_report(report)


def read_report(path: Path) -> GeneratorReport:
    """Read the only row of perf_analyzer's report, whose times are in microseconds."""
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    return GeneratorReport(
        texts_per_s=float(row["Inferences/Second"]),
        p50_ms=float(row["p50 latency"]) * MICRO,
        p95_ms=float(row["p95 latency"]) * MICRO,
        p99_ms=float(row["p99 latency"]) * MICRO,
    )


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.agreement", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines")
    parser.add_argument("name", help="name of the model in the table")
    parser.add_argument("--perf-analyzer", default="perf_analyzer", help="its executable")
    parser.add_argument("--seconds", type=float, default=9, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds per load")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options = parser.parse_args(arguments)
    progress = console.progress()
    try:
        check_writable(options.out)
        model = read_classifier(options.run).identity.name
        with running_server(options.run) as server:
            generators = LoadGenerators(
                model=model,
                addresses=server.addresses,
                program=options.perf_analyzer,
                seconds=options.seconds,
                progress=progress,
            )
            result = measure(generators, options.name, options.rounds, server.pid)
        write_result(options.out, result)
    finally:
        progress.close()
    console.print_line(result.model_dump_json(indent=2, exclude={"provenance"}))
    return 0


def measure(generators: LoadGenerators, name: str, rounds: int, pid: int) -> AgreementResult:
    """Measure all loads, then stop the server process once under each generator.

    Raises:
        CheckFailedError: a generator fails.
    """
    single, several = (Workload.synthetic(texts_per_request=size, seed=0) for size in (1, 8))
    workloads = {1: single, 8: several}
    pairs = [
        _pair(generators, wire, workloads[size], clients, rounds) for wire, size, clients in LOADS
    ]
    command = ("python", "-m", "pipework.benchmarks.studies.agreement", "RUN", name)
    return AgreementResult(
        model=name,
        texts=single.source,
        pairs=tuple(pairs),
        stall=_stall(generators, single, pairs[0], pid),
        command=(*command, "--seconds", f"{generators.seconds:g}", "--rounds", f"{rounds}"),
        provenance=provenance(),
    )


def _pair(
    generators: LoadGenerators, wire: str, workload: Workload, clients: int, rounds: int
) -> Pair:
    reports: dict[Callable[[str, Workload, int], GeneratorReport], list[GeneratorReport]] = {
        generators.pipe_bench: [],
        generators.perf_analyzer: [],
    }
    for number in range(rounds):
        order = [*reports] if number % 2 == 0 else [*reversed(reports)]
        for generator in order:
            reports[generator].append(generator(wire, workload, clients))
    return Pair(
        wire=wire,
        texts_per_request=workload.texts_per_request or 1,
        clients=clients,
        pipework=tuple(reports[generators.pipe_bench]),
        perf_analyzer=tuple(reports[generators.perf_analyzer]),
    )


def _stall(generators: LoadGenerators, workload: Workload, unstalled: Pair, pid: int) -> Stall:
    """Measure an open loop and perf_analyzer with one client, both with and without a stall."""
    rate = QUIET_SHARE * min(report.texts_per_s for report in unstalled.pipework)

    spec = LoadSpec(
        workload=workload,
        load=OfferedLoad(rate=rate, arrivals=Arrivals.POISSON),
        duration=LevelDuration(
            warmup_s=0.0, duration_s=generators.seconds, limit_s=generators.seconds
        ),
    )

    def open_p99_ms() -> float:
        url = generators.url("http")
        level = open_loop(target(url), spec, generators.progress, seed=1).level
        if level.latency_ms is None or level.errors:
            message = f"requests failed: {level.errors or 'no request was completed'}"
            raise CheckFailedError(message)
        return level.latency_ms.p99

    def closed_p99_ms() -> float:
        return generators.perf_analyzer("http", workload, 1).p99_ms

    open_calm_p99_ms, closed_calm_p99_ms = open_p99_ms(), closed_p99_ms()
    with _stopped_once(generators, pid):
        open_stalled_p99_ms = open_p99_ms()
    with _stopped_once(generators, pid):
        closed_stalled_p99_ms = closed_p99_ms()
    return Stall(
        seconds=STALL_S,
        rate=round(rate, 1),
        open_p99_ms=open_stalled_p99_ms,
        open_calm_p99_ms=open_calm_p99_ms,
        closed_p99_ms=closed_stalled_p99_ms,
        closed_calm_p99_ms=closed_calm_p99_ms,
    )


@contextmanager
def _stopped_once(generators: LoadGenerators, pid: int) -> Iterator[None]:
    """Stop the server for STALL_S in the middle of the measurement inside the context.

    Raises:
        CheckFailedError: the measurement ended before the stop.
    """
    ended, stalled = Event(), Event()
    before = _inference_count(generators)

    def stall() -> None:
        while _inference_count(generators) == before and not ended.wait(POLL_S):
            pass  # the measurement has not started
        if ended.wait(generators.seconds / 2):
            return
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STALL_S)
        os.kill(pid, signal.SIGCONT)
        if not ended.is_set():
            stalled.set()

    thread = Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if not stalled.is_set():
        message = "the measurement ended before the server was stopped"
        raise CheckFailedError(message, "increase --seconds")


def _inference_count(generators: LoadGenerators) -> int:
    """Return the number of texts that the server has processed, from its statistics."""
    url = f"http://{generators.addresses['http']}/v2/models/{generators.model}/stats"
    stats = httpx.get(url, trust_env=False).json()["model_stats"]
    return sum(int(version["inference_count"]) for version in stats)


def _inputs(workload: Workload) -> dict[str, list[dict[str, list[str]]]]:
    return {"data": [{"text": [example.text]} for example in workload.examples]}


if __name__ == "__main__":
    sys.exit(main())
