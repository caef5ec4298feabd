"""How fast an engine answers the rows of dev, in their order."""

import time

import numpy as np

from export.subject import Subject
from pipework.engine_record import Speed
from pipework.evaluation import Engine
from pipework.processor import processor
from serve.cpus import cpu_limit

BATCH = 8
SINGLES = 32


def measure(engine: Engine, subject: Subject) -> Speed | None:
    """Measure for `subject.settings.speed_s` seconds each; None where that is 0."""
    seconds = subject.settings.speed_s
    if not seconds:
        return None
    rows = [row.encoding for row in subject.dev]
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    singles = [[row] for row in rows]
    for warm in (*batches[:2], *singles[:2]):
        engine.infer(warm)
    done, began = 0, time.perf_counter()
    while (spent_s := time.perf_counter() - began) < seconds:
        for batch in batches:
            engine.infer(batch)
            done += len(batch)
            if time.perf_counter() - began > seconds:
                break
    texts_per_s = done / (time.perf_counter() - began) if spent_s else 0.0
    took_s: list[float] = []
    while sum(took_s) < seconds / 2 or len(took_s) < SINGLES:
        start = time.perf_counter()
        engine.infer(singles[len(took_s) % len(singles)])
        took_s.append(time.perf_counter() - start)
    return Speed(
        texts_per_s=texts_per_s,
        batch=BATCH,
        p50_ms=1000 * float(np.median(took_s)),
        rows=len(rows),
        threads=cpu_limit(),
        processor=processor(),
    )
