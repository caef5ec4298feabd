"""Processes of a training job: their ranks, collective operations, the launcher, stop signals.

Rank and size come from the environment variables of torchrun. Gradients use NCCL on GPUs and gloo
on CPUs; control messages always use gloo.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TypeVar, cast

import torch
from torch import distributed

from pipework.errors import ConfigError, PipeError
from pipework.machine import cpu_limit
from pipework.train import LAUNCHER

T = TypeVar("T")
RANK, SIZE, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run; with a single process the methods need no communication.

    Attributes:
        rank: rank of this process, from 0; rank 0 writes the run folder and reports progress.
        size: number of processes.
        local_rank: rank of this process on its machine.
        device: device of this process.
        control: the process group for control messages; None for a single process.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    control: distributed.ProcessGroup | None

    @classmethod
    def alone(cls) -> "World":
        """Return the world of a single process."""
        return cls(rank=0, size=1, local_rank=0, device=_device(0), control=None)

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0, which writes files and reports progress."""
        return self.rank == 0

    def any(self, flags: Sequence[bool]) -> tuple[bool, ...]:
        """Return for each flag whether it is set in any process."""
        if self.control is None:
            return tuple(flags)
        combined = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(combined, distributed.ReduceOp.MAX, group=self.control)
        return tuple(bool(flag) for flag in combined.tolist())

    def sum(self, value: float) -> float:
        """Return the sum over all processes."""
        if self.control is None:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(total, group=self.control)
        return float(total)

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all processes by rank in rank 0, and None in the others."""
        if self.control is None:
            return [value]
        values: list[T] | None = [value] * self.size if self.leads else None
        distributed.gather_object(value, values, dst=0, group=self.control)
        return values

    def lead(self, make: Callable[[], T]) -> T:
        """Call `make` in rank 0 and return its result in every process.

        Raises:
            PipeError: the error of rank 0, in every process.
        """
        if self.control is None:
            return make()
        box: list[tuple[T | None, PipeError | None]] = [(None, None)]
        if self.leads:
            try:
                box = [(make(), None)]
            except PipeError as error:
                box = [(None, error)]
        distributed.broadcast_object_list(box, src=0, group=self.control)
        result, failed = box[0]
        if failed is not None:
            failed.reported = not self.leads
            raise failed
        return cast("T", result)

    def first_on_each_machine(self, make: Callable[[], T]) -> T:
        """Call `make` in the first process of each machine, then in the others.

        Raises:
            PipeError: the error of a first process, in every process.
        """
        if self.control is None:
            return make()
        result: T | None = None
        failed: PipeError | None = None
        if self.local_rank == 0:
            try:
                result = make()
            except PipeError as error:
                failed = error
        errors: list[PipeError | None] = [None] * self.size
        distributed.all_gather_object(errors, failed, group=self.control)
        others = next((error for error in errors if error is not None), None)
        if failed is None and others is not None:
            others.reported = True
        if failed or others:
            raise cast("PipeError", failed or others)
        return make() if self.local_rank else cast("T", result)


def is_worker() -> bool:
    """Whether torchrun or `launch` started this process as one of several."""
    return SIZE in os.environ


def is_elastic() -> bool:
    """Whether torchrun may restart this process, or has restarted it already."""
    # torchrun does not pass the number of restarts of the job: each machine has its own count.
    return int(os.environ.get(RESTARTS, "0")) > 0


@contextmanager
def join() -> Iterator[World]:
    """Join the process group that the environment describes, or return a single process.

    Raises:
        ConfigError: there are more processes than GPUs on this machine.
    """
    size, rank = int(os.environ.get(SIZE, "1")), int(os.environ.get(RANK, "0"))
    local_rank = int(os.environ.get(LOCAL_RANK, "0"))
    if size == 1:
        yield World.alone()
        return
    end_with_launcher()
    device = _device(local_rank)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    # Rank 0 may compute encoder states or a data report for hours while the other ranks wait.
    control = distributed.new_group(backend="gloo", timeout=timedelta(days=7))
    try:
        yield World(rank=rank, size=size, local_rank=local_rank, device=device, control=control)
    finally:
        distributed.destroy_process_group()


def end_with_launcher() -> None:
    """Let the kernel send SIGTERM to this process when the launcher is killed.

    Otherwise the workers would train on, and lock the run folder.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        message = f"process {local_rank} has no GPU: this machine has {torch.cuda.device_count()}"
        raise ConfigError(message, "start at most one process per GPU")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class WorkerFailedError(PipeError):
    """A process of the job failed, and the others were stopped."""

    exit_code = 1


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run `pipe` with these arguments in several processes on this machine, and wait for them.

    If a process fails, the others are stopped. SIGTERM and SIGINT are forwarded.

    Returns:
        The exit code: 0, or the code of the first process that failed and printed its error.

    Raises:
        WorkerFailedError: a process was killed or failed with an unexpected exception.
    """
    from torch.distributed.elastic.multiprocessing.api import (  # noqa: PLC0415  (slow to import)
        SignalException,
    )
    from torch.distributed.elastic.multiprocessing.errors import (  # noqa: PLC0415
        ChildFailedError,
    )
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"pipe-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
    # Errors of workers are reported by `_exit_code`.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    command = [sys.executable, "-P", "-m", "pipework.cli", *arguments]
    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_limit() // processes)))
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _exit_code(rank, failure.exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _exit_code(rank: int, code: int) -> int:
    if code > 1:
        return code
    reason = "unexpected exception, see its traceback"
    if code < 0:
        reason = f"killed by {signal.Signals(-code).name}"
    message = f"process {rank} of the job failed ({reason}); the others were stopped"
    error = WorkerFailedError(message, "continue from the last checkpoint with --resume")
    if code < 0:
        error.exit_code = 128 - code  # as a shell reports the signal
    raise error


class StopSignal:
    """Whether a signal has requested the run to stop, and which."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return self.signal is not None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        # A second signal ends the process at once. Workers ignore it, because they receive the
        # signal twice: from the job scheduler and from torchrun.
        signal.signal(number, signal.SIG_IGN if is_worker() else signal.SIG_DFL)


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Catch STOPPING inside the block; SIGHUP stays ignored if it is (nohup)."""
    stop = StopSignal()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    caught = STOPPING[:-1] if ignored else STOPPING
    before = {number: signal.signal(number, stop._handle) for number in caught}  # noqa: SLF001
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
