"""A command that is stopped by a signal ends with its code and at most one line."""

import re
import signal

import pytest

from tests.commands import ForkedPipe
from tests.end_to_end.test_line import wait_for

TRAIN = "train sample --out out --set train.report=false --set train.eval_every=2"
SAVED = "error: stopped by a signal after step N of N; a checkpoint was saved"
TRAINING_STEP, EXPORT_START = "out/state/step-*", "RUN/engines/onnx-fp32/partial"


@pytest.fixture
def stopped(run, tmp_path, monkeypatch):
    """Return a function that sends a signal to a command as soon as a file exists."""
    run.rename(tmp_path / "RUN")
    monkeypatch.chdir(tmp_path)

    def stop(words, moment, number):
        with ForkedPipe(*words) as process:
            wait_for(process, tmp_path / moment)
            process.send_signal(number)
            return process.finish(), tmp_path

    return stop


@pytest.mark.parametrize(
    ("command", "moment", "number", "message"),
    [
        (TRAIN, TRAINING_STEP, signal.SIGTERM, [SAVED]),
        (TRAIN, TRAINING_STEP, signal.SIGINT, [SAVED]),
        (TRAIN, "out/config.toml", signal.SIGINT, []),
        ("export RUN --to onnx", EXPORT_START, signal.SIGINT, []),
    ],
)
def test_a_stopped_command_ends_with_its_code(command, moment, number, message, stopped):
    done, folder = stopped(command.split(), moment, number)
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [re.sub(r"\d+", "N", line) for line in errors] == message
    assert not (folder / "RUN" / "engines").exists()
