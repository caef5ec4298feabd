"""A server under load as a stored result: `python -m pipework.benchmarks.studies.serving RUN NAME --out FILE`.

The server is `pipe serve RUN`, a process beside this one on the same processors. Measured are the
engine alone and, in turns with it, clients that wait for their answers, with several and with
single texts a request, and with as many texts at a time as several had; single texts at twice
their peak, at half of it at once, and at half; and, with --minutes, the server's memory while texts
of all lengths come.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from threading import Event, Thread
from types import FrameType

import numpy as np

from pipework import console
from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.offline import measure_engine
from pipework.benchmarks.load.open_loop import open_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import check_writable, write_result
from pipework.benchmarks.studies.serving_results import Memory, ServingResult
from pipework.benchmarks.targets import Target, target
from pipework.errors import NotReadyError, PipeError
from pipework.export.inference import open_encoder
from pipework.progress import Progress
from pipework.run_folder.manifest import read_classifier
from pipework.serve.config import QueueSettings
from pipework.serve.engines import choose_engine, open_proven

SEVERAL = 8
CLIENTS_SINGLE, CLIENTS_SEVERAL = 64, 16  # that wait for their answers
CLIENTS_MORE = SEVERAL * CLIENTS_SEVERAL  # with single texts, as many texts at a time
STOP_S = 60.0
TURNS = 4
PAGE_KIB = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long to measure: seconds a level, minutes of memory."""

    run: Path
    name: str
    seconds: float
    minutes: float

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that repeats it, without a path of this machine."""
        words = ["python", "-m", "pipework.benchmarks.studies.serving", "RUN", self.name]
        words += ["--seconds", f"{self.seconds:g}"]
        return (*words, *(["--minutes", f"{self.minutes:g}"] if self.minutes else []))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.serving", description=__doc__
    )
    parser.add_argument("run", type=Path, help="run folder with engines")
    parser.add_argument("name", help="of the model, as the table shows it")
    parser.add_argument("--seconds", type=float, default=15, help="of each level")
    parser.add_argument("--minutes", type=float, default=0, help="for which memory is watched")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    given = parser.parse_args(arguments)
    progress = console.progress()
    try:
        check_writable(given.out)
        plan = Plan(run=given.run, name=given.name, seconds=given.seconds, minutes=given.minutes)
        result = measure(plan, progress)
        write_result(given.out, result)
    except PipeError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    finally:
        progress.close()
    console.say(result.model_dump_json(indent=2, exclude={"provenance"}))
    return 0


def measure(plan: Plan, progress: Progress) -> ServingResult:
    """Start the server, load it, and return what was seen.

    Raises:
        PipeError: the run cannot be served.
    """
    single, several = (Workload.synthetic(texts_per_request=n, seed=0) for n in (1, SEVERAL))
    alone, batch_ms = _alone(plan, single)
    offline, many, ones, more = [alone], list[Level](), list[Level](), list[Level]()
    with running(plan.run) as (doors, process):
        asked = target(f"http://{doors['http']}")
        for _ in range(TURNS):  # machines drift: what is compared is measured in turns
            many.append(_closed(asked, several, CLIENTS_SEVERAL, plan, progress))
            ones.append(_closed(asked, single, CLIENTS_SINGLE, plan, progress))
            more.append(_closed(asked, single, CLIENTS_MORE, plan, progress))
            offline.append(_alone(plan, single)[0])
        peak = _closed(asked, single, CLIENTS_SINGLE, plan, progress)
        rate = peak.texts_per_s
        double = _open(asked, single, 2 * rate, plan.seconds, 1, progress)
        after = _open(asked, single, rate / 2, plan.seconds, 2, progress)
        ones += [peak, _closed(asked, single, CLIENTS_SINGLE, plan, progress)]
        half = _open(asked, single, _mean(ones) / 2, plan.seconds, 0, progress)
        memory = _memory(asked, process.pid, plan, rate / 2, progress) if plan.minutes else None
    offline.append(_alone(plan, single)[0])
    manifest = read_classifier(plan.run)
    return ServingResult(
        model=plan.name,
        engine=choose_engine(manifest).name,
        texts=single.source,
        batch_tokens=QueueSettings().batch_tokens,
        offline_texts_per_s=tuple(offline),
        batch_ms=batch_ms,
        several_texts_per_s=round(_mean(many), 2),
        several=SEVERAL,
        single_texts_per_s=round(_mean(ones), 2),
        more_clients=CLIENTS_MORE,
        more_clients_texts_per_s=round(_mean(more), 2),
        half=half,
        double=double,
        peak=peak,
        after=after,
        memory=memory,
        command=plan.command,
        provenance=provenance(),
    )


def _alone(plan: Plan, workload: Workload) -> tuple[float, float]:
    """Return the engine's texts a second, and the median milliseconds of one of its batches."""
    manifest = read_classifier(plan.run)
    encoder = open_encoder(plan.run, manifest)
    tokens = np.mean([len(one) for one in encoder.encode(workload.examples)])
    batch = max(1, int(QueueSettings().batch_tokens / tokens))
    with open_proven(plan.run, manifest) as engine:
        found = [
            measure_engine(
                "engine",
                engine,
                encoder,
                workload.examples,
                batch=batch,
                duration_s=plan.seconds / 2,
            )
            for _ in range(2)  # the first compiles for the shapes that come
        ]
    return found[-1].texts_per_s, found[-1].latency_ms.p50


def _closed(
    asked: Target, workload: Workload, clients: int, plan: Plan, progress: Progress
) -> Level:
    """Return the median of three thirds, by texts a second."""
    found = [
        closed_loop(
            asked,
            workload,
            concurrency=clients,
            duration_s=plan.seconds / 3,
            warmup_s=plan.seconds / 15,
            limit_s=plan.seconds / 3,
            progress=progress,
        )
        for _ in range(3)
    ]
    failed = [level.errors for level in found if level.errors]
    if failed:
        message = f"requests failed: {failed[0]}"
        raise NotReadyError(message)
    return sorted(found, key=lambda level: level.texts_per_s)[len(found) // 2]


def _mean(levels: Sequence[Level]) -> float:
    """Return the mean texts a second."""
    return mean(level.texts_per_s for level in levels)


def _open(
    asked: Target, workload: Workload, rate: float, seconds: float, seed: int, progress: Progress
) -> Level:
    return open_loop(
        asked,
        workload,
        rate=rate,
        duration_s=seconds,
        limit_s=seconds,
        seed=seed,
        progress=progress,
    )


def _memory(asked: Target, pid: int, plan: Plan, rate: float, progress: Progress) -> Memory:
    """Send texts of all lengths for minutes, and watch the server's resident memory."""
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
        _open(asked, mixed, rate / 3, seconds, 9, progress)
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


@contextmanager
def running(run: Path) -> Iterator[tuple[dict[str, str], "subprocess.Popen[str]"]]:
    """Have `pipe serve` serve a run; yield its doors, host:port by protocol, and its process.

    It is for the main thread, and ends with it: after an exception, and after SIGTERM.

    Raises:
        NotReadyError: it does not start.
    """
    command = [str(Path(sys.executable).with_name("pipe")), "serve", str(run)]
    command += ["--port", "0", "--grpc-port", "0"]
    before = signal.signal(signal.SIGTERM, _end)  # an end from outside passes the `finally`, too
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  (our own program)
        try:
            said = process.stdout.readline() if process.stdout else ""
            found = re.search(r"http://(?P<http>\S+) and gRPC on (?P<grpc>\S+)", said)
            if found is None:
                message = "the server did not start; its own words stand above"
                raise NotReadyError(message)
            time.sleep(1)
            yield found.groupdict(), process
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, before)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
