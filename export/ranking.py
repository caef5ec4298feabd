"""The engines of a run in the order of their speed, measured side by side on this machine."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipework.errors import PipeError
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress
from pipework.run_folder.engine_record import EngineRecord, Speed
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest, read_manifest, write_manifest
from pipework.serve.engines import open_engine
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.cpu_threads import cpu_limit
from pipework.text.encoding import Encoding

# Machines drift, so engines take turns: each is opened and measured several times, and the median
# counts. Only figures of one such measurement are compared.

BATCH = 8
ROUNDS = 3
CALLS = 32  # of the rows in their order, again and again
Opener = Callable[[], CollatedEngine]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One turn of one engine."""

    texts_per_s: float
    p50_ms: float
    processor: str


def measure(
    openers: Mapping[str, Opener], rows: Sequence[Encoding], seconds: float, progress: Progress
) -> dict[str, Speed]:
    """Return the speed of each engine.

    Args:
        openers: opens each engine, by name.
        rows: the inputs of dev, in arrival order; the first 256 of them are used, and of these
            every eighth alone.
        seconds: how long each engine is measured, over all its turns; as long again at most goes
            before it.
        progress: hears of the turns done.
    """
    measured = rows[: CALLS * BATCH]
    samples: dict[str, list[Sample]] = {name: [] for name in openers}
    progress.begin("measure", ROUNDS * len(openers), "turns")
    for _ in range(ROUNDS):
        for name, opened in openers.items():
            with opened() as engine:
                samples[name].append(_sample(engine, measured, seconds / ROUNDS))
            progress.advance(1)
    progress.end()
    return {name: _median(turns, len(measured)) for name, turns in samples.items()}


def _sample(engine: CollatedEngine, rows: Sequence[Encoding], seconds: float) -> Sample:
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    took_s, texts = _timed(engine, batches, seconds / 2)
    singles_s, _ = _timed(
        engine, [rows[place : place + 1] for place in range(0, len(rows), BATCH)], seconds / 2
    )
    return Sample(
        texts_per_s=texts / sum(took_s),
        p50_ms=1000 * float(np.median(singles_s)),
        processor=engine.processor,
    )


def _timed(
    engine: CollatedEngine, calls: Sequence[Sequence[Encoding]], seconds: float
) -> tuple[list[float], int]:
    """Return the seconds of each call and the texts of all.

    First every call is made once, as long as that takes no more than `seconds`: a runtime may
    compile for each shape that it has not seen, which costs OpenVINO a fifth of the first pass. A
    server goes on meeting new shapes, but ever fewer.
    """
    _pass(engine, calls, seconds)
    took_s: list[float] = []
    texts = 0
    while sum(took_s) < seconds:
        left_s = seconds - sum(took_s)
        some = _pass(engine, calls, left_s)
        texts += sum(map(len, calls[: len(some)]))
        took_s += some
    return took_s, texts


def _pass(
    engine: CollatedEngine, calls: Sequence[Sequence[Encoding]], seconds: float
) -> list[float]:
    """Return the seconds of each call; at least one is made, and none after `seconds`."""
    took_s: list[float] = []
    for call in calls:
        start = time.perf_counter()
        engine.infer(call)
        took_s.append(time.perf_counter() - start)
        if sum(took_s) >= seconds:
            break
    return took_s


def _median(turns: Sequence[Sample], rows: int) -> Speed:
    return Speed(
        texts_per_s=float(np.median([turn.texts_per_s for turn in turns])),
        batch=BATCH,
        p50_ms=float(np.median([turn.p50_ms for turn in turns])),
        rows=rows,
        threads=cpu_limit(),
        processor=turns[0].processor,
    )


def rank(subject: Subject, progress: Progress) -> tuple[EngineRecord, ...]:
    """Measure what was proven for this processor, write the order down, and return it.

    An engine that is not measured keeps the speed that it had elsewhere, which says nothing
    here, and stands behind those that are.
    """
    manifest = read_manifest(subject.run)
    speeds: dict[str, Speed] = {}
    seconds = subject.settings.speed_s
    openers = _openers(subject, manifest, progress) if seconds else {}
    if openers:
        rows = [row.encoding for row in subject.dev]
        speeds = measure(openers, rows, seconds, progress)
    engines = [
        record.model_copy(update={"speed": speeds.get(record.name, record.speed)})
        for record in manifest.engines
    ]
    engines.sort(key=lambda one: -speeds[one.name].texts_per_s if one.name in speeds else 0.0)
    write_manifest(subject.run, manifest.model_copy(update={"engines": tuple(engines)}))
    return tuple(engines)


def _openers(subject: Subject, manifest: Manifest, progress: Progress) -> dict[str, Opener]:
    """Return what opens each engine that runs here, after opening each once."""
    openers: dict[str, Opener] = {}
    for record in manifest.engines:
        path = subject.run / record.files[0].path
        opener = partial(open_engine, path, record, manifest, tensorrt=record.tensorrt)
        try:
            verify_files(subject.run, record.files)
            with opener() as engine:
                here = record.parity is not None and record.parity.processor == engine.processor
        except PipeError as error:
            progress.note(f"not measured: {record.name}: {error}")
            continue
        if here:
            openers[record.name] = opener
    return openers
