"""Where work items are scored: all or a shard of them in this process, or on a Ray cluster."""

import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pipework.errors import ConfigError, DataError, MissingDependencyError, NotReadyError, PipeError
from pipework.progress import NullProgress, Progress, counted
from pipework.run_folder.engine_record import EngineRecord
from pipework.serve.bulk.input_files import WorkItem
from pipework.serve.bulk.ledger import FinishedItem
from pipework.serve.engines.runtimes import runtime_of

# Environment variables of an array job: index, its first value and step, and the number of jobs.
SHARDS = (
    ("JOB_COMPLETION_INDEX", "", "", "JOB_COMPLETIONS"),  # a Kubernetes Job sets the first
    (
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_STEP",
        "SLURM_ARRAY_TASK_COUNT",
    ),
    ("RANK", "", "", "WORLD_SIZE"),
)
AUTO = "auto"
RAY = "ray"
RAY_URL = "ray://"
CLIENT_PORT = 10001  # of a Ray client server, if the URL has none
AHEAD = 2  # work items for each task that can run: one runs, and one is in the queue
RETRIES = 10  # of a work item whose worker or node ends
ATTEMPTS = 3  # to connect
WAIT_S = 60.0
CHECKED = set[str]()  # digests of the plans of jobs that a worker has checked
Outcome = FinishedItem | DataError  # the entry of an item, or why its bytes cannot be read


class ItemScorer(Protocol):
    """A job, for the process that scores its items; it can be pickled."""

    @property
    def plan_sha256(self) -> str:
        """Digest of the plan."""

    def check(self) -> None:
        """Check, in another process, that it has the model and the job folder of the job."""

    def score(self, item: WorkItem, progress: Progress) -> FinishedItem:
        """Score an item and record it."""


class LocalExecutor:
    """Scores work items in this process.

    Attributes:
        title: what to add to the title of the job, or "".
        threads: threads of each engine; None for all processors of the machine.
    """

    title: str = ""
    threads: int | None = None

    def score(
        self, job: ItemScorer, items: Iterator[WorkItem], progress: Progress
    ) -> Iterator[Outcome]:
        """Yield the outcome of each item."""
        for item in items:
            try:
                yield job.score(item, progress)
            except DataError as error:
                yield error


@dataclass(frozen=True, kw_only=True, slots=True)
class RayExecutor:
    """Scores work items as tasks of a Ray cluster.

    A task takes all processors of the smallest node, or a GPU and its share of them, as the engine
    of a process does on one machine. Ray repeats the tasks of a worker or a node that ends. At most
    AHEAD tasks for each that can run are submitted.

    Attributes:
        ray: the module.
        threads: processors of a task, and threads of its engine.
        gpus: GPUs of a task.
        title: see `LocalExecutor`.
    """

    ray: Any
    threads: int
    gpus: int
    title: str

    @classmethod
    def of(cls, ray: Any, record: EngineRecord) -> "RayExecutor":  # noqa: ANN401
        """Return the executor of the cluster that the module is connected to.

        An engine that was checked on a GPU gets one if a node has any.

        Raises:
            NotReadyError: the cluster has no processors, or no GPU for an engine that needs it.
        """
        needed = runtime_of(record.format).needs_gpu(record)
        checked = record.parity is not None and record.parity.on_gpu
        gpus = int(needed or (checked and bool(_slots(ray, 1))))
        slots = _slots(ray, gpus)
        if not slots:
            message = f"no node of the Ray cluster has {'a GPU' if gpus else 'processors'}"
            raise NotReadyError(message, "add a node, see `ray status`")
        title = f" on {counted(len(slots), 'Ray node')}"
        return cls(ray=ray, threads=min(cpus for _, cpus in slots), gpus=gpus, title=title)

    def score(
        self, job: ItemScorer, items: Iterator[WorkItem], progress: Progress
    ) -> Iterator[Outcome]:
        """Yield the outcomes of the items as they end.

        Raises:
            PipeError: a task cannot be run.
        """
        task = self.ray.remote(_score).options(
            num_cpus=self.threads, num_gpus=self.gpus, max_retries=RETRIES
        )
        shared = self.ray.put(job)
        running: dict[Any, WorkItem] = {}
        try:
            for item in items:
                running[task.remote(shared, item)] = item
                while len(running) >= self._limit():
                    yield from self._ended(running, progress)
            while running:
                yield from self._ended(running, progress)
        finally:
            for reference in running:
                self.ray.cancel(reference, force=True)

    def _limit(self) -> int:
        """Return how many tasks may be submitted; nodes join and leave the cluster."""
        slots = _slots(self.ray, self.gpus)
        tasks = sum(gpus if self.gpus else cpus // self.threads for gpus, cpus in slots)
        return AHEAD * max(1, tasks)

    def _ended(self, running: dict[Any, WorkItem], progress: Progress) -> Iterator[Outcome]:
        """Wait for a task, and yield the outcomes of those that have ended."""
        ended, _ = self.ray.wait([*running], timeout=WAIT_S)
        if not ended:
            waiting = counted(len(running), "submitted work item")
            progress.note(f"none of {waiting} has ended in {WAIT_S:.0f} s, see `ray status`")
        for reference in ended:
            item = running.pop(reference)
            try:
                outcome = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                raise _failure(item, error) from error
            if isinstance(outcome, PipeError) and not isinstance(outcome, DataError):
                raise outcome
            progress.advance(item.rows)
            yield outcome


Executor = LocalExecutor | RayExecutor


@contextmanager
def executor(on: str | None, record: EngineRecord) -> Iterator[Executor]:
    """Return the executor of the option --on: this process, or a Ray cluster.

    Args:
        on: "ray" for the cluster of RAY_ADDRESS or of this machine, or ray://HOST[:PORT]; None for
            this process.
        record: the engine.

    Raises:
        ConfigError: the option is not one of these.
        MissingDependencyError: Ray is not installed.
        NotReadyError: the cluster cannot be reached, or has no processors.
    """
    if on is None:
        yield LocalExecutor()
        return
    host = on.removeprefix(RAY_URL)
    if on != RAY and (host == on or not host or "/" in host):
        message = f"--on {on}: expected ray or ray://HOST[:PORT]"
        raise ConfigError(message, "leave it out to score on this machine")
    try:
        import ray  # noqa: PLC0415  (optional)
    except ModuleNotFoundError as error:
        message = f"--on {on} needs the package {error.name}"
        raise MissingDependencyError(message, "pip install 'pipework[bulk,ray]'") from error
    address = None if on == RAY else f"{on}:{CLIENT_PORT}" if ":" not in host else on
    own = not ray.is_initialized()
    if own:
        _connect(ray, address)
    try:
        yield RayExecutor.of(ray, record)
    finally:
        if own:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:  # noqa: ANN401
    """Connect to a cluster.

    Raises:
        NotReadyError: it cannot be reached.
    """
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings(action="ignore"):  # the error has the same message
            _init(ray, address)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        first, *lines = str(error).strip().splitlines()
        reason = f"{first} {lines[-1]}" if lines and first.endswith(":") else first
        message = f"the Ray cluster {address or 'of RAY_ADDRESS'} cannot be used: {reason}"
        hint = (
            "check it with `ray status`; ray://HOST:PORT is the port of its Ray client server; a "
            "cluster that demands a token, as local clusters do by default from Ray 2.59 on and "
            "all from 2.61 on, needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here"
        )
        raise NotReadyError(message, hint) from error
    finally:
        if main:  # Ray replaces it
            signal.signal(signal.SIGTERM, handler)


def _init(ray: Any, address: str | None) -> None:  # noqa: ANN401
    """Connect, again if the client server lost the process that it started for this client.

    The server forks while threads of gRPC run. Ray 2.60 loses up to a tenth of its children, by
    SIGABRT or SIGSEGV before they begin.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            ray.init(address, log_to_driver=False, logging_level="WARNING")
        except ConnectionAbortedError:
            if not attempts_left:
                raise
        else:
            return


def _slots(ray: Any, gpus: int) -> list[tuple[int, int]]:  # noqa: ANN401
    """Return the GPUs of each node that can run a task, and its processors for each task."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = [(int(node.get("GPU", 0)), int(node.get("CPU", 0))) for node in alive]
    if gpus:
        return [(devices, cpus // devices) for devices, cpus in found if 0 < devices <= cpus]
    return [(devices, cpus) for devices, cpus in found if cpus]


def _failure(item: WorkItem, error: Exception) -> PipeError:
    """Return the error for a task that has failed after its repetitions, or that cannot start."""
    cause = getattr(error, "cause", None) or error
    reason = [line for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
    message = f"work item {item.number} failed on the Ray cluster: {reason[-1].strip()}"
    hint = "all nodes need the same pipework, and RUN, --in and --out at the same paths or URLs"
    return PipeError(message, hint, str(error))


def _score(job: ItemScorer, item: WorkItem) -> FinishedItem | PipeError:
    """Score an item in a worker of the cluster."""
    try:
        if job.plan_sha256 not in CHECKED:
            job.check()
            CHECKED.add(job.plan_sha256)
        return job.score(item, NullProgress())
    except PipeError as error:
        return error


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The I-th of N shards of a job, from 0; the default is the whole job.

    Attributes:
        helps: whether a process that has finished the shard scores work items of other shards, so
            that a slow machine scores fewer.
    """

    index: int = 0
    count: int = 1
    helps: bool = False

    def __str__(self) -> str:
        """Return I/N, from 1."""
        return f"{self.index + 1}/{self.count}"

    def __contains__(self, number: int) -> bool:
        """Return whether the work item or the file with a number belongs to the shard."""
        return number % self.count == self.index


def parse_shard(option: str | None, environment: Mapping[str, str]) -> Shard:
    """Return the shard of an option.

    Args:
        option: I/N; "auto" for the shard of the environment; None for the whole job.
        environment: the environment variables.

    Raises:
        ConfigError: the option is not I/N with 1 <= I <= N, or the numbers in the environment are
            missing, incomplete or do not belong to a shard.
    """
    if option is None:
        return Shard()
    if option != AUTO:
        number, slash, count = option.partition("/")
        if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return Shard(index=int(number) - 1, count=int(count))
        message = f"--shard {option}: expected auto, or I/N with I from 1 to N"
        raise ConfigError(message, "for example --shard 1/4")
    return _shard_of_environment(environment)


def _shard_of_environment(environment: Mapping[str, str]) -> Shard:
    for name, first, step, total in SHARDS:
        if name not in environment:
            continue
        if total not in environment:
            message = f"{name} is set, but {total} is not: the number of shards is unknown"
            raise ConfigError(message, f"set {total}, or use --shard I/N")
        try:
            start = int(environment.get(first, "0"))
            index = (int(environment[name]) - start) // int(environment.get(step, "1"))
            shard = Shard(index=index, count=int(environment[total]), helps=True)
        except (ValueError, ZeroDivisionError):
            shard = Shard(index=-1, count=0)
        if 0 <= shard.index < shard.count:
            return shard
        found = f"{name}={environment[name]} and {total}={environment[total]}"
        message = f"expected the number of a shard and the number of shards, found {found}"
        raise ConfigError(message, f"set {total} to the number of shards, or use --shard I/N")
    names = ", ".join(name for name, *_ in SHARDS)
    message = f"--shard auto: expected one of the environment variables {names}, found none"
    raise ConfigError(message, "use --shard I/N, or leave it out for the whole job")
