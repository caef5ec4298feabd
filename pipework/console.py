"""The terminal: progress on standard error, results on standard output, and Ctrl-C.

On a terminal, progress is a bar with rate and time left. In a log or a pipe it is one line every
LINE_EVERY_S seconds, so that logs stay readable.
"""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedWriter, FileIO, TextIOWrapper
from types import FrameType
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from pipework.closeable import Closeable
from pipework.errors import OutputError, PipeError, StoppedError

LINE_EVERY_S = 10.0
STDOUT = 1  # file descriptor
# Control characters, which may hide or forge lines of a terminal, without tab and line feed.
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
UNLIMITED = 10_000  # columns, wider than any table
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")  # of names
# Without emoji, which would replace the port in "127.0.0.1:-1:".
output = Console(highlight=False, soft_wrap=True, emoji=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def printable(text: str) -> str:
    """Return a text with visible control characters, for a terminal."""
    return text.translate(CONTROLS)


def print_coloured(parts: Iterable[tuple[str, str | None]]) -> None:
    """Print parts of a line; parts with the same name have the same colour, without it none."""
    line = Text()
    for text, name in parts:
        style = "" if name is None else f"bold {COLOURS[sum(name.encode()) % len(COLOURS)]}"
        line.append(printable(text), style)
    output.print(line)


class StandardOutput(FileIO):
    """Standard output whose errors are one line, or quiet if nobody reads it."""

    # Otherwise typer and rich would exit with 1, and Python would print an error at exit.

    def write(self, data: Any, /) -> int:  # noqa: ANN401  (the type of a buffer is private)
        """Write bytes.

        Raises:
            OutputError: they cannot be written.
        """
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # takes the rest of the buffer
            message = f"standard output cannot be written: {error.strerror}"
            failure = OutputError(message, "redirect it to another file, or free space")
            failure.reported = error.errno == errno.EPIPE
            raise failure from error

    @classmethod
    def install(cls) -> None:
        """Replace `sys.stdout`, unless the caller has redirected it."""
        if sys.stdout is not sys.__stdout__:
            return
        if sys.stdout is None:  # it is closed: this makes each write an error
            os.dup2(os.open(os.devnull, os.O_RDONLY), STDOUT)
        raw, text = cls(STDOUT, "wb", closefd=False), sys.stdout
        unbuffered = getattr(text, "write_through", False)
        sys.stdout = TextIOWrapper(
            cast("BufferedWriter", raw) if unbuffered else BufferedWriter(raw),
            encoding=getattr(text, "encoding", None),
            errors="backslashreplace",  # an ASCII terminal must not end a command
            line_buffering=raw.isatty(),
            write_through=unbuffered,
        )


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Exit with 130 if an exception of any type ends the block after Ctrl-C.

    Libraries in C and Rust, such as pydantic, replace the KeyboardInterrupt of their callbacks by
    an exception of their own, often without a cause.
    """
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.default_int_handler(number, frame)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # for example in the background, where Ctrl-C is ignored
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except StoppedError:
        raise  # its line names the next step
    except Exception:
        if interrupted.is_set():
            sys.exit(128 + signal.SIGINT)
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Rate(ProgressColumn):
    """A progress column with units per second."""

    def render(self, task: Task) -> Text:
        """Return the speed, or an empty text as long as there is none."""
        speed = task.finished_speed or task.speed
        unit = task.fields["unit"]
        return Text(_rate(speed, unit) if speed and unit != "s" else "", style="cyan")


class Bars(Closeable):
    """Progress bars on a terminal; stages may nest."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=errors,
        )
        self._tasks: list[TaskID] = []

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Show a bar; the bar of an outermost stage stays on the screen.

        It is shown as finished, also if fewer units are done, unless an exception ends the stage.
        """
        if not self._tasks:
            self._bars.start()
        task = self._bars.add_task(title, total=total, unit=unit, figures="")
        self._tasks.append(task)
        try:
            yield
            if self._tasks == [task]:
                self._bars.update(task, completed=total)
        finally:
            self._tasks.remove(task)
            if not self._tasks:
                self._bars.stop()
            self._bars.remove_task(task)

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Advance the innermost bar."""
        self._bars.advance(self._tasks[-1], count)
        if figures:
            self._bars.update(self._tasks[-1], figures=_figures(figures))

    def note(self, line: str) -> None:
        """Print above the bars."""
        self._bars.console.print(escape(printable(line)))

    def close(self) -> None:
        """Restore the terminal, also during a stage of a generator that was not closed."""
        self._bars.stop()


@dataclass(eq=False)
class _Stage:
    title: str
    total: int
    unit: str
    start: float
    printed: float
    done: int = 0


@dataclass
class Lines(Closeable):
    """Progress lines in a log: one every LINE_EVERY_S seconds, and one at the end of a stage."""

    _stages: list[_Stage] = field(default_factory=list)
    _figures: str = ""

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Print the last line at the end of an outermost stage, unless an exception ends it.

        A stage that ends early, such as a training, ends with the units that are done.
        """
        now = time.monotonic()
        stage = _Stage(title, total, unit, start=now, printed=now)
        self._stages.append(stage)
        try:
            yield
        finally:
            self._stages.remove(stage)
        stage.total = stage.done
        if not self._stages:
            self._print(stage)
            self._figures = ""

    def advance(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Print a line when one is due."""
        stage = self._stages[-1]
        stage.done = min(stage.done + count, stage.total)
        self._figures = _figures(figures) if figures else self._figures
        if time.monotonic() - stage.printed >= LINE_EVERY_S:
            self._print(stage)

    def note(self, line: str) -> None:
        """Print a line."""
        errors.print(escape(printable(line)))

    def close(self) -> None:
        """Do nothing: lines do not change the state of a terminal."""

    def _print(self, stage: _Stage) -> None:
        now = time.monotonic()
        stage.printed = now
        parts = (
            f"{stage.title}: {stage.done:,} of {stage.total:,} {stage.unit}",
            *_speed(stage, max(now - stage.start, 1e-9)),
            self._figures,
        )
        errors.print(escape(", ".join(part for part in parts if part)))


def _speed(stage: _Stage, elapsed_s: float) -> Iterator[str]:
    """Yield the rate and the time left, once at least one unit is done."""
    rate = stage.done / elapsed_s
    if stage.unit != "s" and stage.done:
        yield _rate(rate, stage.unit)
    if stage.done >= stage.total:
        yield f"took {elapsed_s:.1f} s"
    elif stage.done:
        yield f"{(stage.total - stage.done) / rate:.0f} s left"


def _rate(per_s: float, unit: str) -> str:
    return f"{per_s:,.0f} {unit}/s" if per_s >= 1 else f"{60 * per_s:.1f} {unit}/min"


def progress() -> Bars | Lines:
    """Return bars if standard error is a terminal, else lines."""
    return Bars() if errors.is_terminal else Lines()


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, text_columns: int = 1
) -> None:
    """Print a table; the first `text_columns` are left-aligned, the others right-aligned.

    If it is wider than the terminal, the words of a head are stacked. Names and numbers, the
    columns without spaces, are not broken.
    """
    rendered = _table(title, columns, rows, text_columns)
    unlimited = output.options.update(width=UNLIMITED)
    if output.measure(rendered, options=unlimited).maximum > output.width:
        stacked = [column.replace(" ", "\n") for column in columns]
        rendered = _table(title, stacked, rows, text_columns)
    output.print(rendered)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], text_columns: int
) -> Table:
    rendered = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for index, column in enumerate(columns):
        cells = [str(row[index]) for row in rows]
        widest = 0 if any(" " in cell for cell in cells) else max(map(cell_len, cells), default=0)
        justify: JustifyMethod = "right" if index >= text_columns else "left"
        rendered.add_column(escape(column), justify=justify, overflow="fold", min_width=widest)
    for row in rows:
        rendered.add_row(*(escape(printable(str(cell))) for cell in row))
    return rendered


def print_line(line: str) -> None:
    """Print a line of the result without interpreting markup."""
    output.print(printable(line), markup=False)


def print_error(error: PipeError) -> None:
    """Print the message, the details and the hint of an error that was not reported."""
    if error.reported:
        return
    errors.print(f"[bold red]error:[/] {escape(printable(str(error)))}")
    if error.details:
        errors.print(printable(error.details), markup=False)
    if error.hint:
        errors.print(f"[bold]hint:[/] {escape(printable(error.hint))}")


def _figures(figures: Mapping[str, str]) -> str:
    return "  ".join(f"{name} {value}" for name, value in figures.items())
