"""The page of a run that is not finished."""

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipework.errors import StoppedError
from pipework.train.report import run_log
from pipework.train.report.page import unfinished_html
from pipework.train.report.run_log import RunLogger

REFRESH = '<meta http-equiv="refresh" content="10">'
PARTS = {"step": "20 of 60", "best dev accuracy": "0.7000"}


def log(logger, steps):
    for step in steps:
        logger.scalars(step, "train", {"loss": 1 / step, "learning_rate": 1e-4})
    logger.scalars(steps[-1], "dev", {"accuracy": 0.5 + step / 100, "macro_f1": 0.5})


def page(run):
    text = (run / "report.html").read_text()
    HTMLParser().feed(text)
    return text


def points(text):
    lines = re.findall(r'<polyline points="([^"]*)"|<circle', text)
    return [len(line.split()) or 1 for line in lines]  # a circle is one point


def test_the_page_shows_the_curves_while_the_run_trains(tmp_path):
    with RunLogger(tmp_path, report=True) as logger:
        log(logger, range(1, 11))
        log(logger, range(11, 21))
        logger.page(PARTS)
        text = page(tmp_path)
        assert REFRESH in text
        assert "20 of 60" in text
        # The two scores on dev share a plot; then loss and learning rate.
        assert points(text) == [2, 2, 20, 20]
        assert text.count("<svg") == 3
        assert not list(tmp_path.glob("*.partial"))
    assert (tmp_path / "report.html").read_text() == text  # the report of the finished run follows


def test_a_resumed_run_continues_the_curves(tmp_path):
    with RunLogger(tmp_path) as logger:
        log(logger, range(1, 11))
    assert not (tmp_path / "report.html").exists()
    with RunLogger(tmp_path, step=8, report=True) as logger:
        log(logger, range(9, 13))
        logger.page(PARTS)
    assert points(page(tmp_path)) == [1, 1, 12, 12]


def test_the_page_of_a_stopped_run_is_not_reloaded_and_names_the_option(tmp_path):
    logger = RunLogger(tmp_path, report=True)
    log(logger, range(1, 4))
    logger.page(PARTS)
    error = StoppedError("stopped by a signal", "", 15)
    logger.__exit__(StoppedError, error, None)
    assert REFRESH not in page(tmp_path)
    assert "--resume" in page(tmp_path)


def test_the_page_takes_less_than_a_percent_of_the_time(tmp_path, monkeypatch):
    now, written = [0.0], []
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    real = run_log.write_atomically

    def write(path, content):
        now[0] += 0.02  # the clock stands still otherwise
        if path.name == "report.html":
            written.append(now[0])
        real(path, content)

    monkeypatch.setattr(run_log, "write_atomically", write)
    with RunLogger(tmp_path, report=True) as logger:
        for step in range(1, 1001):
            now[0] += 0.01
            log(logger, range(step, step + 1))
            logger.page(PARTS)
    assert 5 <= len(written) <= 7  # of 10 s, 0.02 s each


def test_a_page_with_many_points_is_drawn_in_milliseconds(tmp_path):
    with RunLogger(tmp_path, report=True) as logger:
        for step in range(1, 2001):
            logger.scalars(step, "train", {"loss": 1 / step})
        logger.page(PARTS)
    (count,) = points(page(tmp_path))
    assert 300 < count <= 400
    curve = [(step, 1 / step) for step in range(1, 2001)]
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        unfinished_html("run", PARTS, {"train/loss": curve}, running=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.02


def test_a_page_that_cannot_be_written_neither_ends_the_run_nor_hides_its_error(tmp_path):
    (tmp_path / "report.html").mkdir()
    logger = RunLogger(tmp_path, report=True)
    log(logger, range(1, 4))
    logger.page(PARTS)
    logger.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    text = (tmp_path / "train.log").read_text()
    assert text.count("WARNING report.html cannot be written: Is a directory") == 2
    assert "ZeroDivisionError" in text


def open_files(folder):
    return [path for path in Path("/proc/self/fd").iterdir() if folder in path.resolve().parents]


def test_the_files_are_closed_if_the_page_cannot_be_made(tmp_path):
    logger = RunLogger(tmp_path, report=True)
    log(logger, range(1, 4))
    with pytest.raises(AttributeError):
        logger.page({"step": None})  # not text
    assert open_files(tmp_path)
    with pytest.raises(AttributeError):
        logger.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert not open_files(tmp_path)
