"""Programs beside each other, each with its share of the processors."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGHUP, SIGTERM
from time import sleep

from pipework.errors import PipeError, StoppedError
from pipework.progress import Progress
from pipework.serve.engines.cpu_threads import cpu_limit
from pipework.train.loop.stop_signal import listening

LOOK_EVERY_S = 0.1
LAST_LINES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A command, started when it may be.

    Attributes:
        name: what people know it by.
        command: with its arguments.
        log: where its output goes.
        ready: whether what it needs is there.
        ended_well: whether it has done its work, whatever its exit code.
        figures: how far it has come, in words.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    ready: Callable[[], bool]
    ended_well: Callable[[], bool]
    figures: Callable[[], str]

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start it; what its log held before stays there."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  (our own program)
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # a signal of the terminal reaches it through us, once
            )


def run_beside(programs: Sequence[Program], jobs: int, progress: Progress) -> None:
    """Run programs, `jobs` at once, in their order as far as they are ready.

    When a signal comes or one fails, the others are asked to stop, and waited for.

    Raises:
        PipeError: one failed; its details are the end of its log.
        StoppedError: a signal came; nothing was left running.
    """
    environment = {**os.environ, **_share(jobs)}
    waiting, running = list(programs), dict[Program, subprocess.Popen[bytes]]()
    progress.begin("trainings", len(waiting), "trainings")
    with listening(SIGHUP) as stop, ExitStack() as started:
        started.callback(_end, running)
        while waiting or running:
            for program in [one for one in waiting if one.ready()][: jobs - len(running)]:
                waiting.remove(program)
                progress.note(f"{program.name}: started, {len(waiting)} more to come")
                running[program] = program.start(environment)
            sleep(LOOK_EVERY_S)
            if stop.signal is not None:
                message = f"stopped by a signal, {len(running)} trainings under way"
                raise StoppedError(message, "start again: it goes on", stop.signal)
            ended = _ended(running)
            progress.advance(ended, {one.name: one.figures() for one in running})
    progress.end()


def _share(jobs: int) -> dict[str, str]:
    """Return what gives each of several programs its share; one alone takes what it is used to."""
    return {"OMP_NUM_THREADS": str(max(1, cpu_limit() // jobs))} if jobs > 1 else {}


def _ended(running: dict[Program, subprocess.Popen[bytes]]) -> int:
    """Forget the programs that have ended well; return how many.

    Raises:
        PipeError: one has not.
    """
    codes = {program: process.poll() for program, process in running.items()}
    ended = {program: code for program, code in codes.items() if code is not None}
    for program, code in ended.items():
        del running[program]
        if not program.ended_well():
            message = f"{program.name} failed with exit code {code}"
            raise PipeError(message, f"look at {program.log}", _tail(program.log))
    return len(ended)


def _end(running: Mapping[Program, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        process.send_signal(SIGTERM)
    for process in running.values():
        process.wait()


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LAST_LINES:])
