"""Measure and rank the speed of a run's engines on this machine."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pipework.errors import PipeError
from pipework.export.rows.run_rows import RunRows
from pipework.export.speed import ServedEngine, measure
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord, Precision, Speed, unreliable_ranking
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import LockedRun, Manifest
from pipework.serve.engines import choose_engine, open_engine, server_engines
from pipework.serve.engines.base import CollatedEngine

ENGINES = "engines"  # folder of a run


def rank(run_rows: RunRows, manifest: Manifest, progress: Progress) -> tuple[EngineRecord, ...]:
    """Measure the engines proven on this processor and return all engines, the fastest first.

    Among engines whose intervals overlap, the highest precision comes first. An engine that is not
    measured keeps its speed from another machine, which is not comparable, and is ranked last.
    """
    speeds: dict[str, Speed] = {}
    seconds = run_rows.settings.speed_s
    measured = _measurable(run_rows, manifest, progress) if seconds else {}
    if measured:
        rows = [row.encoding for row in run_rows.dev]
        speeds = measure(measured, rows, seconds, progress)
        _warn_if_unsteady(run_rows.run, speeds, progress)
    engines = [
        record.model_copy(update={"speed": speeds.get(record.name, record.speed)})
        for record in manifest.engines
    ]
    ranked = by_speed([engine for engine in engines if engine.name in speeds])
    if len(tied := fastest(ranked)) > 1:
        names = ", ".join(engine.name for engine in tied)
        progress.note(f"no fastest engine: the speeds of {names} may be equal; the safest is first")
    return (*ranked, *(engine for engine in engines if engine.name not in speeds))


def by_speed(engines: Iterable[EngineRecord]) -> list[EngineRecord]:
    """Return measured engines, the fastest first, and of equally fast ones the most precise."""
    left, ranked = list(engines), list[EngineRecord]()
    while left:
        ranked.append(min(fastest(left), key=lambda one: list(Precision).index(one.precision)))
        left.remove(ranked[-1])
    return ranked


def fastest(engines: Sequence[EngineRecord]) -> list[EngineRecord]:
    """Return the engines that may be the fastest, by their intervals, the fastest first."""
    speeds = {engine.name: engine.speed for engine in engines if engine.speed is not None}
    first = max(speeds.values(), key=lambda speed: speed.texts_per_s, default=None)
    tied = [one for one in engines if first and speeds[one.name].interval[1] >= first.interval[0]]
    return sorted(tied, key=lambda one: -speeds[one.name].texts_per_s)


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


def _measurable(
    run_rows: RunRows, manifest: Manifest, progress: Progress
) -> dict[str, ServedEngine]:
    """Return the engines that run on this processor, after opening each once.

    The smallest is first: it is the reference of the others, and probably fast.
    """
    engines: dict[str, ServedEngine] = {}
    sizes: dict[str, int] = {}
    for record in manifest.current_engines:
        opener = partial(_open_as_served, run_rows.run, record, manifest)
        try:
            verify_files(run_rows.run, record.files)
            with opener() as engine:
                processor, on_gpu = engine.processor, engine.on_gpu
        except PipeError as error:
            progress.note(f"not measured: {record.name}: {error}")
            continue
        if record.parity is not None and record.parity.processor == processor:
            instances, _ = server_engines(on_gpu=on_gpu)
            engines[record.name] = ServedEngine(opener=opener, instances=instances)
            sizes[record.name] = sum(file.size for file in record.files)
    return {name: engines[name] for name in sorted(engines, key=sizes.__getitem__)}


def _open_as_served(run: Path, record: EngineRecord, manifest: Manifest) -> CollatedEngine:
    """Open an engine with the threads and the costs of calls that it has in a server."""
    _, threads = server_engines(on_gpu=False)
    path = run / record.files[0].path
    engine = open_engine(path, record, manifest, built=record.built, threads=threads)
    with ExitStack() as on_error:
        on_error.callback(engine.close)
        engine.learn_costs(manifest.input.max_length)
        on_error.pop_all()
    return engine
