"""A command that is stopped by a signal ends with its code and at most one line."""

import os
import re
import signal

import pytest
from pydantic import BaseModel, model_serializer

from pipework.run_folder import manifest
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
        (TRAIN, TRAINING_STEP, signal.SIGHUP, [SAVED]),
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


class Interrupted(BaseModel):
    """A model that is interrupted while pydantic writes it as JSON."""

    @model_serializer
    def values(self):
        os.kill(os.getpid(), signal.SIGINT)
        return {}


def interrupt_manifest():
    manifest.read_manifest = lambda _: Interrupted()


def test_ctrl_c_in_a_callback_of_a_library_in_rust_ends_with_its_code():
    with ForkedPipe("show", "RUN", "--json", before=interrupt_manifest) as process:
        done = process.finish()
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
