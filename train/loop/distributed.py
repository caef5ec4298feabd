"""Several processes train one model: who takes part, what they agree on, and who starts them.

The place of a process comes from the environment, as torchrun sets it. Gradients go over NCCL on
GPUs and over gloo on CPUs; decisions always go over gloo.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
from torch import distributed

from pipework.errors import ConfigError, PipeError

T = TypeVar("T")
RANK, SIZE, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
RESTARTS = "TORCHELASTIC_MAX_RESTARTS"


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run; alone, each method is its own simplest case.

    Attributes:
        rank: of this process, from 0; rank 0 writes the run folder and speaks.
        size: number of processes.
        local_rank: of this process on its machine.
        device: where this process computes.
        control: the group that decisions go over; None for a process alone.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    control: distributed.ProcessGroup | None

    @classmethod
    def alone(cls) -> "World":
        """Return the world of a process that trains by itself."""
        return cls(rank=0, size=1, local_rank=0, device=_device(0), control=None)

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def any(self, flags: Sequence[bool]) -> tuple[bool, ...]:
        """Return, for each flag, whether it is set in any process."""
        if self.control is None:
            return tuple(flags)
        found = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.control)
        return tuple(bool(flag) for flag in found.tolist())

    def sum(self, value: float) -> float:
        """Return the sum over all processes."""
        if self.control is None:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(found, group=self.control)
        return float(found)

    def gather(self, value: T) -> list[T] | None:
        """Return every process's value, by rank, to rank 0, and None to the others."""
        if self.control is None:
            return [value]
        found: list[T] | None = [value] * self.size if self.leads else None
        distributed.gather_object(value, found, dst=0, group=self.control)
        return found

    def lead(self, make: Callable[[], T]) -> T:
        """Let rank 0 make something, and return it to all.

        Raises:
            PipeError: what rank 0 raised, in every process.
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
        made, failed = box[0]
        if failed is not None:
            failed.told = not self.leads
            raise failed
        return cast("T", made)

    def first_on_each_machine(self, make: Callable[[], T]) -> T:
        """Let the first process of each machine make something before the others make theirs.

        Raises:
            PipeError: what a first process raised, in every process.
        """
        if self.control is None:
            return make()
        made: T | None = None
        failed: PipeError | None = None
        if self.local_rank == 0:
            try:
                made = make()
            except PipeError as error:
                failed = error
        found: list[PipeError | None] = [None] * self.size
        distributed.all_gather_object(found, failed, group=self.control)
        others = next((error for error in found if error is not None), None)
        if failed is None and others is not None:
            others.told = True
        if failed or others:
            raise cast("PipeError", failed or others)
        return make() if self.local_rank else cast("T", made)


def placed() -> bool:
    """Whether this process is one of several that torchrun, or `launch`, has started."""
    return SIZE in os.environ


def elastic() -> bool:
    """Whether torchrun may start this process again, and may have done so.

    It does not tell which: a machine that joins anew has a count of its own.
    """
    return int(os.environ.get(RESTARTS, "0")) > 0


@contextmanager
def join() -> Iterator[World]:
    """Take the place that the environment gives, or be alone.

    Raises:
        ConfigError: a process has no GPU of its own although the others compute on theirs.
    """
    size, rank = int(os.environ.get(SIZE, "1")), int(os.environ.get(RANK, "0"))
    local_rank = int(os.environ.get(LOCAL_RANK, "0"))
    if size == 1:
        yield World.alone()
        return
    device = _device(local_rank)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    # Rank 0 may work alone for hours, on features or a data report, while the others wait.
    control = distributed.new_group(backend="gloo", timeout=timedelta(days=7))
    try:
        yield World(rank=rank, size=size, local_rank=local_rank, device=device, control=control)
    finally:
        distributed.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        message = f"process {local_rank} has no GPU: there are {torch.cuda.device_count()} here"
        raise ConfigError(message, "start as many processes as there are GPUs")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class DeadProcessError(PipeError):
    """A process of the job died, and the others were stopped."""

    exit_code = 1


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run `pipe` with these arguments in several processes of this machine, and wait for them.

    A process that dies ends the others. SIGTERM and SIGINT are passed on.

    Returns:
        The exit code: 0, or that of the process that ended first, which has said why.

    Raises:
        DeadProcessError: a process was killed, or died of a bug, whose traceback is on the screen.
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
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # `_code` says it
    command = [sys.executable, "-P", "-m", "pipework.cli", *arguments]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // processes)))
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _code(rank, failure.exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _code(rank: int, code: int) -> int:
    if code > 1:
        return code
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else "a bug, with its traceback"
    message = f"process {rank} of the job died ({how}); the others were stopped"
    raise DeadProcessError(message, "go on from the last checkpoint with --resume")


def _cores() -> int:
    return len(os.sched_getaffinity(0))
