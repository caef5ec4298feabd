"""Measure and rank the speed of a run's engines on this machine."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pipework.errors import PipeError
from pipework.export.rows.run_rows import RunRows
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord, Speed, unreliable_ranking
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import LockedRun, Manifest
from pipework.serve.engines import choose_engine, open_engine
from pipework.serve.engines.base import CollatedEngine
from pipework.text.encoding import Encoding

# The speed of a machine drifts, so the engines take turns: each is opened and measured several
# times and the median counts. Only figures of the same measurement are compared.

ENGINES = "engines"  # folder of a run
BATCH = 8
ROUNDS = 3
CALLS = 32  # batches per pass over the rows
Opener = Callable[[], CollatedEngine]


@dataclass(frozen=True, kw_only=True)
class SpeedSample:
    """The speed of an engine in one round."""

    texts_per_s: float
    p50_ms: float
    processor: str


def measure(
    openers: Mapping[str, Opener], rows: Sequence[Encoding], seconds: float, progress: Progress
) -> dict[str, Speed]:
    """Return the speed of each engine.

    Args:
        openers: functions that open an engine, by engine name.
        rows: dev inputs in file order. The first 256 are measured in batches of 8, and every
            eighth of them as a single text.
        seconds: measuring time of an engine over all rounds; the warm-up takes at most as long.
        progress: receives the finished rounds.
    """
    measured = rows[: CALLS * BATCH]
    samples: dict[str, list[SpeedSample]] = {name: [] for name in openers}
    with progress.stage("measure", ROUNDS * len(openers), "rounds"):
        for _ in range(ROUNDS):
            for name, opener in openers.items():
                with opener() as engine:
                    samples[name].append(_sample(engine, measured, seconds / ROUNDS))
                progress.advance(1)
    return {name: _median(rounds, len(measured)) for name, rounds in samples.items()}


def _sample(engine: CollatedEngine, rows: Sequence[Encoding], seconds: float) -> SpeedSample:
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    batch_s, texts = _time_calls(engine, batches, seconds / 2)
    singles = [rows[index : index + 1] for index in range(0, len(rows), BATCH)]
    single_s, _ = _time_calls(engine, singles, seconds / 2)
    return SpeedSample(
        texts_per_s=texts / sum(batch_s),
        p50_ms=1000 * float(np.median(single_s)),
        processor=engine.processor,
    )


def _time_calls(
    engine: CollatedEngine, calls: Sequence[Sequence[Encoding]], seconds: float
) -> tuple[list[float], int]:
    """Return the seconds of each call and the total number of texts."""
    # Warm-up, at most `seconds` long: a runtime may compile for each new shape, which takes a
    # fifth of OpenVINO's first pass. A server meets fewer and fewer new shapes.
    _run_calls(engine, calls, seconds)
    took_s: list[float] = []
    texts = 0
    while sum(took_s) < seconds:
        remaining_s = seconds - sum(took_s)
        pass_s = _run_calls(engine, calls, remaining_s)
        texts += sum(map(len, calls[: len(pass_s)]))
        took_s += pass_s
    return took_s, texts


def _run_calls(
    engine: CollatedEngine, calls: Sequence[Sequence[Encoding]], seconds: float
) -> list[float]:
    """Run at least one call and start none after `seconds`; return the seconds of each."""
    took_s: list[float] = []
    for call in calls:
        start = time.perf_counter()
        engine.infer(call)
        took_s.append(time.perf_counter() - start)
        if sum(took_s) >= seconds:
            break
    return took_s


def _median(rounds: Sequence[SpeedSample], rows: int) -> Speed:
    rates = [sample.texts_per_s for sample in rounds]
    return Speed(
        texts_per_s=float(np.median(rates)),
        variation=float(np.ptp(rates) / np.median(rates)),
        batch=BATCH,
        p50_ms=float(np.median([sample.p50_ms for sample in rounds])),
        rows=rows,
        threads=cpu_limit(),
        processor=rounds[0].processor,
    )


def rank(run_rows: RunRows, manifest: Manifest, progress: Progress) -> tuple[EngineRecord, ...]:
    """Measure the engines proven on this processor and return all engines by speed.

    An engine that is not measured keeps its speed from another machine, which is not comparable,
    and is ranked last.
    """
    speeds: dict[str, Speed] = {}
    seconds = run_rows.settings.speed_s
    openers = _openers(run_rows, manifest, progress) if seconds else {}
    if openers:
        rows = [row.encoding for row in run_rows.dev]
        speeds = measure(openers, rows, seconds, progress)
        _warn_if_unsteady(run_rows.run, speeds, progress)
    engines = [
        record.model_copy(update={"speed": speeds.get(record.name, record.speed)})
        for record in manifest.engines
    ]
    engines.sort(
        key=lambda engine: -speeds[engine.name].texts_per_s if engine.name in speeds else 0.0
    )
    return tuple(engines)


def keep_best(
    locked: LockedRun, records: Sequence[EngineRecord], keep: int, progress: Progress
) -> tuple[EngineRecord, ...]:
    """Delete the slower engines of an export and return the others.

    The default engine is always kept. All are kept if the speeds are unreliable or unknown.

    Args:
        locked: the run.
        records: the engines of the export, the fastest first.
        keep: number of engines to keep; 0 for all.
        progress: receives the names of the deleted engines.
    """
    if not keep or any(one.speed is None or not one.speed.is_steady for one in records):
        return tuple(records)
    default = choose_engine(locked.manifest).name
    best = [record for record in records if record.name != default][: keep - 1]
    slower = [record for record in records if record not in best and record.name != default]
    if not slower:
        return tuple(records)
    locked.record_engines(one for one in locked.manifest.engines if one not in slower)
    for record in slower:
        shutil.rmtree(locked.folder / ENGINES / record.name)
    size = sum(file.size for record in slower for file in record.files) / 1e6
    names = ", ".join(record.name for record in slower)
    progress.note(f"deleted slower engines ({size:.0f} MB): {names}; --set keep=0 keeps them")
    return tuple(record for record in records if record not in slower)


def remove_unrecorded(locked: LockedRun, progress: Progress) -> None:
    """Delete files under engines/ that the manifest does not name (unfinished exports)."""
    run = locked.folder
    recorded = {run / file.path for engine in locked.manifest.engines for file in engine.files}
    below = sorted((run / ENGINES).rglob("*"), reverse=True)  # contents before their folder
    for path in (*below, run / ENGINES):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in recorded:
            progress.note(f"removed {path}, left from an unfinished export")
            path.unlink()


def _warn_if_unsteady(run: Path, speeds: Mapping[str, Speed], progress: Progress) -> None:
    if len(speeds) < 2:  # noqa: PLR2004  (nothing to rank)
        return
    warning = unreliable_ranking(speeds.values())
    if warning is not None:
        command = f"pipe export {run} --to auto --set rebuild=false"
        progress.note(f"{warning}. Measure again when it is idle: {command}")


def _openers(run_rows: RunRows, manifest: Manifest, progress: Progress) -> dict[str, Opener]:
    """Return an opener for each engine that runs on this processor, after opening it once."""
    openers: dict[str, Opener] = {}
    for record in manifest.engines:
        path = run_rows.run / record.files[0].path
        opener = partial(open_engine, path, record, manifest, built=record.built)
        try:
            verify_files(run_rows.run, record.files)
            with opener() as engine:
                proven_here = (
                    record.parity is not None and record.parity.processor == engine.processor
                )
        except PipeError as error:
            progress.note(f"not measured: {record.name}: {error}")
            continue
        if proven_here:
            openers[record.name] = opener
    return openers
