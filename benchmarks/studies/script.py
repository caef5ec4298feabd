"""Shared by the command-line programs of the studies: errors, command lines, a pool of jobs."""

import argparse
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from signal import SIGHUP, SIGTERM
from time import sleep
from typing import ParamSpec

from pipework import console
from pipework.errors import PipeError, StoppedError, as_pipe_error
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.train.loop.distributed import catch_stop_signals

P = ParamSpec("P")


def report_errors(main: Callable[P, int]) -> Callable[P, int]:
    """Wrap a `main` function: print user errors with their hint to stderr, return their exit code.

    User errors are PipeError and missing optional packages. All other exceptions propagate.
    """

    @wraps(main)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (PipeError, ModuleNotFoundError) as error:
            user_error = as_pipe_error(error)
            if user_error is None:
                raise
            console.print_error(user_error)
            return user_error.exit_code

    return wrapper


def command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the command line that reproduces a run of a program that has only options.

    Options with their default value are left out. A path is replaced by the name of its option in
    capitals, and after `--set KEY=` by PLACE.
    """
    words = parser.prog.split()
    for name, value in vars(options).items():
        if value == parser.get_default(name):
            continue
        values = value if isinstance(value, list) else [value]
        if name == "set":  # repeated for each value
            for key, _, text in (item.partition("=") for item in values):
                words += ("--set", f"{key}={_without_path('place', text)}")
        else:
            shown = (_without_path(name, item) for item in values)
            words += (f"--{name.replace('_', '-')}", *shown)
    return tuple(words)


def _without_path(name: str, value: object) -> str:
    text = f"{value}"
    is_path = isinstance(value, Path) or ("/" in text and Path(text).exists())
    return name.upper() if is_path else text


LOOK_EVERY_S = 0.1
LAST_LINES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A command that is started when its dependencies are complete.

    Attributes:
        name: name in messages.
        command: executable and arguments.
        log: file that receives its output.
        ready: returns whether its dependencies are complete.
        ended_well: returns whether it has finished its work, independent of the exit code.
        figures: returns its progress as text.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    ready: Callable[[], bool]
    ended_well: Callable[[], bool]
    figures: Callable[[], str]

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the process; its output is appended to the log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  (our own program)
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # so that the terminal's signals reach it only through us
            )


def run_parallel(programs: Sequence[Program], jobs: int, progress: Progress) -> None:
    """Run programs, `jobs` at once, in their order as soon as they are ready.

    After a signal or a failure, the running programs are terminated and waited for.

    Raises:
        PipeError: a program failed; the details are the end of its log.
        StoppedError: a signal arrived; no program is left running.
    """
    environment = {**os.environ, **_share(jobs)}
    waiting, running = list(programs), dict[Program, subprocess.Popen[bytes]]()
    with (
        progress.stage("training runs", len(waiting), "runs"),
        catch_stop_signals(SIGHUP) as stop,
        ExitStack() as started,
    ):
        started.callback(_end, running)
        while waiting or running:
            for program in [each for each in waiting if each.ready()][: jobs - len(running)]:
                waiting.remove(program)
                progress.note(f"{program.name}: started, {len(waiting)} in the queue")
                running[program] = program.start(environment)
            sleep(LOOK_EVERY_S)
            if stop.signal is not None:
                message = f"stopped by a signal with {len(running)} training runs in progress"
                raise StoppedError(message, "run the same command again to resume", stop.signal)
            ended = _ended(running)
            progress.advance(ended, {program.name: program.figures() for program in running})


def _share(jobs: int) -> dict[str, str]:
    """Return the thread limit of one of several programs; a single program keeps the default."""
    return {"OMP_NUM_THREADS": str(max(1, cpu_limit() // jobs))} if jobs > 1 else {}


def _ended(running: dict[Program, subprocess.Popen[bytes]]) -> int:
    """Remove finished programs from `running`; return their number.

    Raises:
        PipeError: a program failed.
    """
    codes = {program: process.poll() for program, process in running.items()}
    ended = {program: code for program, code in codes.items() if code is not None}
    for program, code in ended.items():
        del running[program]
        if not program.ended_well():
            message = f"{program.name} failed with exit code {code}"
            raise PipeError(message, f"see its log {program.log}", _tail(program.log))
    return len(ended)


def _end(running: Mapping[Program, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        process.send_signal(SIGTERM)
    for process in running.values():
        process.wait()


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LAST_LINES:])
