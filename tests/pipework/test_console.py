import os
import re
import signal
from io import StringIO

import pytest
from rich.console import Console

from pipework import console
from pipework.console import Bars, Lines, exit_on_interrupt, print_error
from pipework.errors import PipeError


@pytest.fixture
def now(monkeypatch):
    """The seconds of the clock, which a test sets."""
    now = [0.0]
    monkeypatch.setattr("pipework.console.time.monotonic", lambda: now[0])
    return now


def test_a_log_line_has_rate_time_left_and_figures(capsys, now):
    lines = Lines()
    with lines.stage("train", 1000, "examples"):
        for _ in range(4):
            now[0] += 5
            lines.advance(100, {"loss": "0.5"})
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "train: 200 of 1,000 examples, 20 examples/s, 40 s left, loss 0.5"
    assert len(printed) == 3  # at 10 s, at 20 s, at the end


def test_a_slow_stage_has_a_rate_per_minute_and_none_before_its_first_unit(capsys, now):
    lines = Lines()
    with lines.stage("trainings", 4, "trainings"):
        now[0] = 30
        lines.advance(0, {"first": "step 5"})
        now[0] = 60
        lines.advance(2)
        assert capsys.readouterr().err.splitlines() == [
            "trainings: 0 of 4 trainings, first step 5",
            "trainings: 2 of 4 trainings, 2.0 trainings/min, 60 s left, first step 5",
        ]


def test_a_stage_does_not_exceed_its_total_and_ends_at_100_percent(capsys, now):
    lines = Lines()
    for counts in (
        (60, 60),
        (20, 30),
    ):  # an estimate that is too small, and a stage that ends early
        with lines.stage("read", 100, "bytes"):
            for count in counts:
                now[0] += 10
                lines.advance(count)
    assert capsys.readouterr().err.splitlines() == [
        "read: 60 of 100 bytes, 6 bytes/s, 7 s left",
        "read: 100 of 100 bytes, 5 bytes/s, took 20.0 s",
        "read: 100 of 100 bytes, 5 bytes/s, took 20.0 s",
        "read: 20 of 100 bytes, 2 bytes/s, 40 s left",
        "read: 50 of 100 bytes, 2 bytes/s, 20 s left",
        "read: 50 of 50 bytes, 2 bytes/s, took 20.0 s",
    ]


def fail_in_stage(progress, title):
    def fail():
        with progress.stage(title, 10, "rows"):
            progress.advance(5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_stage_that_fails_has_no_last_line_and_the_next_stage_has(capsys):
    lines = Lines()
    fail_in_stage(lines, "failed")
    with lines.stage("read", 5, "rows"):
        fail_in_stage(lines, "nested")
        lines.advance(5)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("read: 5 of 5 rows")


def test_a_quick_inner_stage_prints_nothing(capsys):
    lines = Lines()
    with lines.stage("train", 10, "examples"):
        with lines.stage("evaluate", 5, "rows"):
            lines.advance(5)
        assert capsys.readouterr().err == ""
        lines.advance(10)
    assert re.match(r"train: 10 of 10 examples", capsys.readouterr().err)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, with the console of the progress bars in it."""
    screen = Console(file=StringIO(), force_terminal=True, width=120, highlight=False, _environ={})
    monkeypatch.setattr(console, "errors", screen)
    return screen


def last_screen(terminal):
    """The lines that stay on the screen: each refresh of the bars overwrites the one before."""
    return [line.rstrip() for line in terminal.file.getvalue().split("\x1b[2K")[-1].splitlines()]


def test_bars_nest_and_notes_stay_above_them(terminal):
    bars = Bars()
    with bars.stage("train", 10, "examples"):
        bars.advance(5, {"loss": "0.5"})
        with bars.stage("evaluate", 2, "rows"):
            bars.advance(2)
        bars.note("a [note] with markup")
    assert "a [note] with markup" in terminal.file.getvalue()
    shown = " ".join(last_screen(terminal))
    assert re.search(r"train .* 100% .* loss 0\.5", shown)
    assert "evaluate" not in shown


def test_the_bar_of_a_stage_that_fails_ends_where_it_was(terminal):
    bars = Bars()
    with bars.stage("train", 20, "rows"):
        fail_in_stage(bars, "evaluate")
        assert bars._bars.live.is_started  # noqa: SLF001
    assert re.search(r"train .* 100% ", " ".join(last_screen(terminal)))
    fail_in_stage(bars, "read")
    assert re.search(r"read .* 50% ", " ".join(last_screen(terminal)))
    assert not bars._bars.live.is_started  # noqa: SLF001
    assert not bars._bars.tasks  # noqa: SLF001


def test_the_terminal_is_restored_during_a_stage_of_a_generator():
    def rows(progress):
        with progress.stage("predict", 10, "rows"):
            yield 1

    bars = Bars()
    predictions = rows(bars)
    assert next(predictions) == 1
    assert bars._bars.live.is_started  # noqa: SLF001
    bars.close()
    assert not bars._bars.live.is_started  # noqa: SLF001
    predictions.close()
    assert not bars._bars.tasks  # noqa: SLF001


def test_an_error_is_printed_with_details_and_hint_without_markup(capsys):
    print_error(PipeError("found [bold]x[/]", "do [this]", "a  b\n1  2"))
    assert capsys.readouterr().err.splitlines() == [
        "error: found [bold]x[/]",
        "a  b",
        "1  2",
        "hint: do [this]",
    ]


NAME = "openvino-int8-static-packed"


@pytest.mark.parametrize(("width", "heads"), [(80, "engine max diff details"), (44, "max")])
def test_a_narrow_table_breaks_neither_names_nor_numbers(capsys, monkeypatch, width, heads):
    monkeypatch.setattr(console.output, "_width", width)
    row = (NAME, "5.4e-02", "some words")
    console.table("", ("engine", "max diff", "details"), [row, ("[red]", "1", "2")])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == heads
    assert any(line.startswith(f"{NAME} 5.4e-02 some") for line in lines)
    assert lines[-1] == "[red] 1 2"


def replace_interrupt():
    """Raise another exception for Ctrl-C, as the libraries in C and Rust do."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        message = "error calling a function"
        raise ValueError(message) from None


def test_an_exception_after_ctrl_c_exits_with_the_code_of_the_signal():
    with pytest.raises(SystemExit) as exited, exit_on_interrupt():
        replace_interrupt()
    assert exited.value.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_exception_without_ctrl_c_is_not_changed():
    with pytest.raises(ZeroDivisionError), exit_on_interrupt():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_that_ignores_ctrl_c_still_does():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with exit_on_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_control_characters_are_shown_and_not_sent_to_the_terminal(capsys):
    hostile = "\x1b]0;title\x07 \x9b2J rain"
    shown = r"\x1b]0;title\x07 \x9b2J rain"
    console.print_line(hostile)
    console.table("", ("label",), [(hostile,)])
    print_error(PipeError(hostile, hostile))
    Lines().note(hostile)
    printed = capsys.readouterr()
    assert printed.out.count(shown) == 2
    assert printed.err.count(shown) == 3
    assert "\x1b]" not in printed.out + printed.err
    assert console.printable("雨\té\n") == "雨\té\n"
