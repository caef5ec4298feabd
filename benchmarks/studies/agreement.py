"""`pipe bench` beside perf_analyzer: `python -m pipework.benchmarks.studies.agreement RUN NAME --out FILE`.

Both measure one server, `pipe serve RUN`, in turns, with the same texts over the same protocol; and
once the server stands still for half a second, which clients that come at their own times feel and
a closed loop does not (coordinated omission).

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
from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.open_loop import open_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.agreement_results import AgreementResult, Pair, Seen, Stall
from pipework.benchmarks.studies.serving import running
from pipework.benchmarks.targets import target
from pipework.errors import CheckFailedError, PipeError
from pipework.progress import Progress
from pipework.run_folder.manifest import read_classifier

LOADS = (("http", 1, 1), ("http", 1, 8), ("http", 8, 4), ("grpc", 1, 8))
ROUNDS, WINDOWS = 3, 3
STALL_S, QUIET_SHARE = 0.5, 0.3  # of what one client gets, for the open loop
START_S, TIMES = 60.0, 10.0  # perf_analyzer's start, and how often it may begin anew
POLL_S = 0.05
MICRO = 1e-3  # microseconds in milliseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """Two generators before one server.

    Attributes:
        model: its name.
        doors: where the server listens, by protocol, host:port.
        program: of perf_analyzer.
        seconds: of each measurement.
        progress: is told each of ours.
    """

    model: str
    doors: dict[str, str]
    program: str
    seconds: float
    progress: Progress

    def url(self, wire: str) -> str:
        """Return the URL of the model."""
        path = f"/{self.model}" if wire == "grpc" else f"/v2/models/{self.model}"
        return f"{wire}://{self.doors[wire]}{path}"

    def ours(self, wire: str, workload: Workload, clients: int) -> Seen:
        """Measure a closed loop."""
        level = closed_loop(
            target(self.url(wire)),
            workload,
            concurrency=clients,
            duration_s=self.seconds,
            warmup_s=min(1.0, self.seconds),
            limit_s=self.seconds,
            progress=self.progress,
        )
        times = level.latency_ms
        if times is None or level.errors:
            message = f"requests failed: {level.errors}"
            raise CheckFailedError(message)
        return Seen(
            texts_per_s=level.texts_per_s, p50_ms=times.p50, p95_ms=times.p95, p99_ms=times.p99
        )

    def theirs(self, wire: str, workload: Workload, clients: int) -> Seen:
        """Have perf_analyzer measure it: three windows, however they differ.

        Raises:
            CheckFailedError: it fails.
        """
        with TemporaryDirectory() as folder:
            data, found = Path(folder) / "data.json", Path(folder) / "found.csv"
            data.write_text(json.dumps(_inputs(workload)), encoding="utf-8")
            command = [self.program, "-m", self.model, "-u", self.doors[wire], "-i", wire]
            command += ["--input-data", str(data), "--concurrency-range", f"{clients}"]
            command += ["-b", f"{workload.texts_per_request}", "-f", str(found)]
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
                message = f"perf_analyzer has not ended after {error.timeout:g} s"
                raise CheckFailedError(message, "try longer --seconds") from error
            except OSError as error:
                message = f"{self.program} cannot be started: {error.strerror}"
                raise CheckFailedError(message, "name it with --perf-analyzer") from error
            if done.returncode or not found.is_file():
                message = f"perf_analyzer ended with {done.returncode}"
                raise CheckFailedError(message, "its words stand above", done.stdout + done.stderr)
            return read_report(found)


def read_report(path: Path) -> Seen:
    """Read the one row of perf_analyzer's report: texts a second, and times in microseconds."""
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    return Seen(
        texts_per_s=float(row["Inferences/Second"]),
        p50_ms=float(row["p50 latency"]) * MICRO,
        p95_ms=float(row["p95 latency"]) * MICRO,
        p99_ms=float(row["p99 latency"]) * MICRO,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.agreement", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines")
    parser.add_argument("name", help="of the model, as the table shows it")
    parser.add_argument("--perf-analyzer", default="perf_analyzer", help="the program")
    parser.add_argument("--seconds", type=float, default=9, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that each has")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    given = parser.parse_args(arguments)
    progress = console.progress()
    try:
        check_writable(given.out)
        model = read_classifier(given.run).identity.name
        with running(given.run) as (doors, process):
            sides = Sides(
                model=model,
                doors=doors,
                program=given.perf_analyzer,
                seconds=given.seconds,
                progress=progress,
            )
            result = measure(sides, given.name, given.rounds, process.pid)
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write("\n".join(filter(None, (error.details, f"error: {error}", error.hint))))
        return error.exit_code
    finally:
        progress.close()
    console.say(result.model_dump_json(indent=2, exclude={"provenance"}))
    return 0


def measure(sides: Sides, name: str, rounds: int, pid: int) -> AgreementResult:
    """Measure all loads, then the server of this process as it stands still.

    Raises:
        CheckFailedError: a generator fails.
    """
    single, several = (Workload.synthetic(texts_per_request=size, seed=0) for size in (1, 8))
    workloads = {1: single, 8: several}
    pairs = [_pair(sides, wire, workloads[size], clients, rounds) for wire, size, clients in LOADS]
    command = ("python", "-m", "pipework.benchmarks.studies.agreement", "RUN", name)
    return AgreementResult(
        model=name,
        texts=single.source,
        pairs=tuple(pairs),
        stall=_stall(sides, single, pairs[0], pid),
        command=(*command, "--seconds", f"{sides.seconds:g}", "--rounds", f"{rounds}"),
        provenance=provenance(),
    )


def _pair(sides: Sides, wire: str, workload: Workload, clients: int, rounds: int) -> Pair:
    found: dict[Callable[[str, Workload, int], Seen], list[Seen]] = {
        sides.ours: [],
        sides.theirs: [],
    }
    for number in range(rounds):
        turn = [*found] if number % 2 == 0 else [*reversed(found)]
        for side in turn:
            found[side].append(side(wire, workload, clients))
    return Pair(
        wire=wire,
        texts_per_request=workload.texts_per_request or 1,
        clients=clients,
        pipework=tuple(found[sides.ours]),
        perf_analyzer=tuple(found[sides.theirs]),
    )


def _stall(sides: Sides, workload: Workload, alone: Pair, pid: int) -> Stall:
    """Measure an open loop and perf_analyzer's one client, each without a stall and with one."""
    rate = QUIET_SHARE * min(one.texts_per_s for one in alone.pipework)

    def opened() -> float:
        level = open_loop(
            target(sides.url("http")),
            workload,
            rate=rate,
            duration_s=sides.seconds,
            limit_s=sides.seconds,
            seed=1,
            progress=sides.progress,
        )
        if level.latency_ms is None or level.errors:
            message = f"requests failed: {level.errors or 'none was answered'}"
            raise CheckFailedError(message)
        return level.latency_ms.p99

    def closed() -> float:
        return sides.theirs("http", workload, 1).p99_ms

    calm = opened(), closed()
    with _standing_still(sides, pid):
        felt = opened()
    with _standing_still(sides, pid):
        missed = closed()
    return Stall(
        seconds=STALL_S,
        rate=round(rate, 1),
        open_p99_ms=felt,
        open_calm_p99_ms=calm[0],
        closed_p99_ms=missed,
        closed_calm_p99_ms=calm[1],
    )


@contextmanager
def _standing_still(sides: Sides, pid: int) -> Iterator[None]:
    """Stop the server once, for STALL_S, in the middle of what is measured meanwhile.

    Raises:
        CheckFailedError: what was measured had ended before.
    """
    ended, stood = Event(), Event()
    before = _answered(sides)

    def stall() -> None:
        while _answered(sides) == before and not ended.wait(POLL_S):
            pass  # it has not begun
        if ended.wait(sides.seconds / 2):
            return
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STALL_S)
        os.kill(pid, signal.SIGCONT)
        if not ended.is_set():
            stood.set()

    thread = Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if not stood.is_set():
        message = "the measurement had ended before the server stood still"
        raise CheckFailedError(message, "try longer --seconds")


def _answered(sides: Sides) -> int:
    """Return how many texts the server says that it has answered."""
    url = f"http://{sides.doors['http']}/v2/models/{sides.model}/stats"
    stats = httpx.get(url, trust_env=False).json()["model_stats"]
    return sum(int(one["inference_count"]) for one in stats)


def _inputs(workload: Workload) -> dict[str, list[dict[str, list[str]]]]:
    return {"data": [{"text": [one.text]} for one in workload.examples]}


if __name__ == "__main__":
    sys.exit(main())
