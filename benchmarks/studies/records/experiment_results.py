"""Stored results of experiments: training variants over seeds, replicas, front processes."""

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import mean, median
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.progress import counted
from pipework.record import Record

Setting = str | int | float | bool | None


class Difference(Record):
    """The mean score difference between two arms in points, paired by seed.

    `low` and `high` bound it with 95 % confidence by Student's t over the seeds.
    """

    against: str
    mean: float
    low: float
    high: float


class Arm(Record):
    """One training variant: scores in percent by seed, of the checkpoint with the best dev score.

    `minutes` is the mean time of one training run, `minutes_before` the time of the runs that it
    depends on: pretraining, or all teachers. `difference` is measured on the test split.
    """

    name: str
    seeds: tuple[int, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    minutes: float
    minutes_before: float
    parameters: int
    difference: Difference | None
    settings: dict[str, Setting]


class ExperimentResult(Record):
    """The arms of an experiment; `floors` are baseline scores on the test rows, in percent.

    All choices were made on dev; test was evaluated once, after all arms were trained. `at_once`
    training runs shared the machine, so the minutes are those of a share of it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["experiment"] = "experiment"
    experiment: Literal["scratch", "domain"]
    dataset: str
    metric: str
    train_rows: int
    test_rows: int
    arms: tuple[Arm, ...]
    floors: dict[str, float]
    at_once: int = 1
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def best(self) -> tuple[Arm, int]:
        """The model with the best dev score: its arm and the index of its seed."""
        models = ((arm, index) for arm in self.arms for index in range(len(arm.seeds)))
        return max(models, key=lambda model: model[0].dev[model[1]])


HEAD = ("step", "dev", "test", "difference, points", "parameters", "minutes")


def experiment_rows(result: ExperimentResult) -> Iterator[tuple[str, ...]]:
    """Yield one table row per arm and one per baseline."""
    for arm in result.arms:
        before = f" + {arm.minutes_before:.0f} before" if arm.minutes_before else ""
        yield (
            arm.name,
            _scores(arm.dev),
            f"**{mean(arm.test):.2f}**{_spread(arm.test)}",
            _difference(arm.difference),
            f"{arm.parameters / 1e6:.1f} M",
            f"{arm.minutes:.0f}{before}",
        )
    for name, value in result.floors.items():
        yield (name, "", f"{value:.2f}", "", "", "")


def experiment_summary(result: ExperimentResult) -> str:
    """Return a paragraph with the experiment's data and its best single model."""
    arm, index = result.best
    return (
        f"**{result.dataset}**: {result.metric} in percent on {result.test_rows:,} test rows, "
        f"{result.train_rows:,} labelled train rows, mean ± standard deviation over "
        f"{len(result.arms[0].seeds)} seeds, differences with 95 % intervals. The single model "
        f"with the best dev score ({arm.name}, seed {arm.seeds[index]}, {arm.dev[index]:.2f}) has "
        f"**{arm.test[index]:.2f}** on test."
    )


def _scores(values: tuple[float, ...]) -> str:
    return f"{mean(values):.2f}{_spread(values)}"


def _spread(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return ""
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return f" ± {variance**0.5:.2f}"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    interval = f"({difference.low:+.2f} to {difference.high:+.2f})"
    return f"{difference.mean:+.2f} {interval} against {difference.against}"


class ScalingSample(Record):
    """The load and the value of the scaling query at a time.

    Attributes:
        seconds: since the start.
        clients: clients of `pipe bench`, which sends a few seconds after its start; else 0.
        value: of the query, in seconds of work in the queues of all replicas.
    """

    seconds: float
    clients: int
    value: float


class ReplicaLimits(Record):
    """What determines the replicas; the defaults are those of the HorizontalPodAutoscaler.

    Attributes:
        target: of the value per replica, in seconds.
        least: fewest replicas.
        most: most replicas.
        period_s: time between two decisions.
        tolerance: relative distance from the target within which nothing changes.
        stabilization_s: for this time, replicas stay at the highest recommendation.
    """

    target: float
    least: int
    most: int
    period_s: float = 15.0
    tolerance: float = 0.1
    stabilization_s: float = 300.0


class ScalingResult(Record):
    """The scaling query of the chart, evaluated by Prometheus while a server is under load.

    The server is a single replica, whatever the formula gives. Each client sends its next request
    of `texts_per_request` texts after the response; `limits` are those of the ScaledObject.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["scaling"] = "scaling"
    model: str
    query: str
    texts_per_request: int
    samples: tuple[ScalingSample, ...]
    limits: ReplicaLimits
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def replicas(self) -> tuple[int, ...]:
        """The replicas at the time of each sample, see `hpa_replicas`."""
        return hpa_replicas(self.samples, self.limits)


def hpa_replicas(samples: Sequence[ScalingSample], limits: ReplicaLimits) -> tuple[int, ...]:
    """Return the replicas that the HorizontalPodAutoscaler would set, at the time of each sample.

    A decision takes ceil(replicas x value per replica / target), at most the double or four more
    than before; see https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale.
    """
    replicas, result = limits.least, list[int]()
    recommended = list[tuple[float, int]]()
    decided_s = float("-inf")
    for sample in samples:
        if sample.seconds - decided_s >= limits.period_s:
            decided_s = sample.seconds
            ratio = sample.value / replicas / limits.target
            wanted = replicas if abs(ratio - 1) <= limits.tolerance else ceil(replicas * ratio)
            recommended.append((decided_s, wanted))
            window = decided_s - limits.stabilization_s
            stable = max(count for seconds, count in recommended if seconds >= window)
            if wanted < replicas:
                wanted = min(stable, replicas)
            replicas = max(limits.least, min(wanted, limits.most, max(2 * replicas, replicas + 4)))
        result.append(replicas)
    return tuple(result)


SCALING_HEAD = ("model", "clients", "seconds", "highest value of the query, s", "replicas")


def scaling_rows(result: ScalingResult) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each phase of the load."""
    phases = list[list[tuple[ScalingSample, int]]]()
    for sample, replicas in zip(result.samples, result.replicas, strict=True):
        if not phases or phases[-1][0][0].clients != sample.clients:
            phases.append([])
        phases[-1].append((sample, replicas))
    for phase in phases:
        (first, _), (last, ended) = phase[0], phase[-1]
        highest = max(sample.value for sample, _ in phase)
        most = max(replicas for _, replicas in phase)
        shown = f"at most {most}, {ended} at the end"
        seconds = f"{first.seconds:,.0f} to {last.seconds:,.0f}"
        yield result.model, f"{first.clients}", seconds, f"{highest:.2f}", shown


NO_ENGINE = "none"


class WorkersLevel(Record):
    """A server under closed-loop load, measured once per turn.

    Attributes:
        fronts: front processes; 0 for a server of one process.
        engines: engine processes; 0 for a server of one process.
        requests_per_s: by turn.
        front_us: CPU time of all front processes per request, in microseconds; with no front
            processes that of the server. Median over the turns.
        engine_us: CPU time of all engine processes per request, in microseconds.
    """

    fronts: int
    engines: int
    requests_per_s: tuple[float, ...]
    front_us: float
    engine_us: float


class WorkersLoad(Record):
    """Servers of different numbers of processes under the same load, in turns.

    Attributes:
        engine: the engine, or NO_ENGINE for an engine that returns zeros at once.
        texts_per_request: texts in each request.
        clients: clients of the closed loop.
        levels: one per server.
    """

    engine: str
    texts_per_request: int
    clients: int
    levels: tuple[WorkersLevel, ...]


class WorkersResult(Record):
    """Servers of one and of several processes under load, on the processors of their clients."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["workers"] = "workers"
    model: str
    loads: tuple[WorkersLoad, ...]
    command: tuple[str, ...]
    provenance: Provenance


WORKERS_HEAD = (
    "model",
    "load",
    "processes",
    "requests/s",
    "of one process",
    "CPU, front",
    "CPU, engine",
)


def workers_rows(result: WorkersResult) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each server and load; shares are medians over the turns."""
    for load in result.loads:
        one = load.levels[0].requests_per_s
        texts = counted(load.texts_per_request, "text")
        shown = f"{texts}, {load.clients} clients, engine: {load.engine}"
        for level in load.levels:
            pairs = zip(level.requests_per_s, one, strict=True)
            share = median(rate / base for rate, base in pairs)
            yield (
                result.model,
                shown,
                f"{counted(level.fronts, 'front')}, {counted(level.engines, 'engine')}"
                if level.fronts
                else "1",
                f"{median(level.requests_per_s):,.0f}",
                f"{share:.0%}" if level.fronts else "",
                f"{level.front_us:,.0f} µs",
                f"{level.engine_us:,.0f} µs" if level.fronts else "",
            )


def possible_rate(level: WorkersLevel) -> float:
    """Return the requests/s that the CPU times allow if each process had a CPU of its own."""
    fronts = max(1, level.fronts) * 1e6 / level.front_us
    return min(fronts, level.engines * 1e6 / level.engine_us) if level.engine_us else fronts
