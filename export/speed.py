"""Measure the speed of engines as a server runs them, in turns with a reference engine.

The speed of a machine drifts, and other programs use it. Two engines that compute the same batches
directly after each other meet the same conditions, so the ratio of their times is compared, not the
times. At most two engines are open at a time, because large ones fill the memory.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from pipework.closeable import Closeable
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.engine_record import Speed
from pipework.serve.engines.base import CollatedEngine
from pipework.text.encoding import Encoding

BATCH = 8
CALLS = 32  # batches of the measured rows
FEWEST_STEPS = 6  # fewer have no 95 % interval of the median
Z = 1.96  # standard errors of a 95 % interval
Batches = Sequence[Sequence[Encoding]]


@dataclass(frozen=True, kw_only=True)
class ServedEngine:
    """An engine to measure: a function that opens it, and how many a server opens."""

    opener: Callable[[], CollatedEngine]
    instances: int = 1


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Wall and processor seconds per text of one step."""

    wall_s: float
    cpu_s: float


class OpenInstances(Closeable):
    """The open instances of an engine, which compute a batch each at the same time."""

    def __init__(self, engine: ServedEngine) -> None:
        with ExitStack() as on_error:
            self.instances = [
                on_error.enter_context(engine.opener()) for _ in range(engine.instances)
            ]
            self._stack = on_error.pop_all()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(engine.instances))

    def close(self) -> None:
        """Close the instances."""
        self._stack.close()

    def run(self, batches: Batches, number: int) -> StepCost:
        """Compute the batches from `number` on, one on each instance, and return the cost."""
        places = range(number, number + len(self.instances))
        step = [batches[place % len(batches)] for place in places]
        start_s, cpu_s = time.perf_counter(), time.process_time()
        list(self._pool.map(lambda engine, batch: engine.infer(batch), self.instances, step))
        texts = sum(map(len, step))
        wall_s = time.perf_counter() - start_s
        return StepCost(wall_s=wall_s / texts, cpu_s=(time.process_time() - cpu_s) / texts)

    def warm(self, batches: Batches, seconds: float) -> None:
        """Compute all batches once, for at most `seconds`.

        A runtime may compile for each new shape, which takes a fifth of OpenVINO's first pass. A
        server meets fewer and fewer new shapes.
        """
        end_s = time.perf_counter() + seconds
        for number in range(0, len(batches), len(self.instances)):
            self.run(batches, number)
            if time.perf_counter() >= end_s:
                break


def measure(
    engines: Mapping[str, ServedEngine],
    rows: Sequence[Encoding],
    seconds: float,
    progress: Progress,
) -> dict[str, Speed]:
    """Return the speed of each engine.

    Args:
        engines: the engines by name. The first is the reference of the others.
        rows: dev inputs in file order. The first 256 are measured in batches of 8, and every
            eighth of them as a single text.
        seconds: measuring time of an engine; the warm-up takes at most as long.
        progress: receives the finished engines.
    """
    measured = rows[: CALLS * BATCH]
    batches = [measured[start : start + BATCH] for start in range(0, len(measured), BATCH)]
    singles = [measured[index : index + 1] for index in range(0, len(measured), BATCH)]
    speeds = dict[str, Speed]()
    own_s = list[float]()
    first = next(iter(engines))
    with (
        progress.stage("measure", len(engines), "engines"),
        OpenInstances(engines[first]) as reference,
    ):
        reference.warm(batches, seconds / 2)
        for name, engine in engines.items():
            with ExitStack() as stack:
                tested = reference
                if name != first:
                    tested = stack.enter_context(OpenInstances(engine))
                    tested.warm(batches, seconds / 2)
                pairs = _take_turns(tested, reference, batches, seconds)
                own_s += [cost.wall_s for _, cost in pairs]
                speeds[name] = _relative_speed(
                    pairs,
                    rows=len(measured),
                    p50_ms=1000 * _median_s(tested.instances[0], singles, seconds / 4),
                    processor=tested.instances[0].processor,
                    instances=engine.instances,
                )
            progress.advance(1)
    rate = len(own_s) / sum(own_s)
    return {
        name: speed.model_copy(update={"texts_per_s": rate * speed.texts_per_s})
        for name, speed in speeds.items()
    }


def _take_turns(
    tested: OpenInstances, reference: OpenInstances, batches: Batches, seconds: float
) -> list[tuple[StepCost, StepCost]]:
    """Return the costs of the same batches for two engines, which start in turns."""
    pairs: list[tuple[StepCost, StepCost]] = []
    end_s = time.perf_counter() + seconds
    while len(pairs) < FEWEST_STEPS or time.perf_counter() < end_s:
        number = len(pairs) * len(tested.instances)
        if len(pairs) % 2:
            own = reference.run(batches, number)
            pairs.append((tested.run(batches, number), own))
        else:
            pairs.append((tested.run(batches, number), reference.run(batches, number)))
    return pairs


def _median_s(engine: CollatedEngine, calls: Batches, seconds: float) -> float:
    """Return the median seconds of a call."""
    for call in calls[:1]:
        engine.infer(call)  # the warm-up had no single texts
    took_s: list[float] = []
    while not took_s or sum(took_s) < seconds:
        start_s = time.perf_counter()
        engine.infer(calls[len(took_s) % len(calls)])
        took_s.append(time.perf_counter() - start_s)
    return float(np.median(took_s))


def _relative_speed(
    pairs: Sequence[tuple[StepCost, StepCost]],
    *,
    rows: int,
    p50_ms: float,
    processor: str,
    instances: int,
) -> Speed:
    """Return a speed as a multiple of the reference's, with its 95 % interval."""
    ratios = sorted(own.wall_s / reference.wall_s for own, reference in pairs)
    count, half = len(ratios), Z * math.sqrt(len(ratios)) / 2
    # The interval of a median, by order statistics: it needs no assumption about disturbances.
    low = ratios[max(0, math.floor(count / 2 - half))]
    high = ratios[min(count - 1, math.ceil(count / 2 + half))]
    middle = float(np.median(ratios))
    return Speed(
        texts_per_s=1 / middle,
        variation=middle / low - middle / high,
        batch=BATCH,
        p50_ms=p50_ms,
        rows=rows,
        threads=cpu_limit(),
        processor=processor,
        cpu_ms=1000 * float(np.median([own.cpu_s for own, _ in pairs])),
        instances=instances,
    )
