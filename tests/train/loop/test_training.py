"""Too little memory during a training: one line with the settings that reduce it."""

import errno
import os
import re
import resource
from pathlib import Path

import pytest
import torch

from pipework.errors import ConfigError
from pipework.train.config.train import TrainSettings
from pipework.train.loop.training import limited_memory
from pipework.train.model.pretrained import opening
from tests.commands import ForkedPipe

CPU = torch.device("cpu")


def caught(allocate, **settings):
    """Return the error that is raised for an allocation in a training."""
    with (
        pytest.raises(ConfigError) as error,
        limited_memory(TrainSettings(**settings), torch.device("cuda:0")),
    ):
        allocate()
    return error.value


def failing(error):
    def allocate():
        raise error

    return allocate


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 60),
        lambda: bytearray(1 << 60),
        failing(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
        failing(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")),
        failing(RuntimeError("CUDA error: out of memory")),
        failing(RuntimeError("unable to mmap 9 bytes from file <a>: Cannot allocate memory (12)")),
        failing(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))),
    ],
)
def test_too_little_memory_is_reported_with_the_settings(allocate):
    error = caught(allocate, batch_size=24, accumulate=3)
    assert str(error) == "out of memory on cuda:0: train.batch_size is 24, train.accumulate 3"
    assert error.hint == (
        "set train.batch_size=12 and train.accumulate=6 for the same steps, "
        "or set train.gradient_checkpointing=true, or lower model.max_length"
    )


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(1 << 60), failing(OSError(errno.ENOMEM, "Cannot allocate memory"))],
)
def test_too_little_memory_for_a_checkpoint_is_not_a_damaged_checkpoint(tmp_path, allocate):
    def load():
        with opening(str(tmp_path)):
            allocate()

    assert str(caught(load)).startswith("out of memory on cuda:0: ")


def test_settings_that_cannot_be_reduced_are_not_named():
    error = caught(failing(MemoryError()), batch_size=1, gradient_checkpointing=True)
    assert error.hint == "lower model.max_length"


def test_an_odd_number_of_rows_is_not_halved_for_the_same_steps():
    error = caught(failing(MemoryError()), batch_size=3)
    assert error.hint.startswith("set train.batch_size=2 and train.accumulate=2, or set ")


def test_another_error_is_not_converted():
    with pytest.raises(RuntimeError, match="shapes differ"), limited_memory(TrainSettings(), CPU):
        raise RuntimeError("shapes differ")  # noqa: EM101, TRY003


def limit_memory(room=200 << 20):
    """Limit the address space of this process to little more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


def test_a_training_without_enough_memory_ends_in_one_line(tmp_path):
    settings = ("batch_size=4000", "report=false", "epochs=1", "precision=fp32")
    words = [word for name in settings for word in ("--set", f"train.{name}")]
    with ForkedPipe(
        "train", "sample", "--out", tmp_path / "run", *words, before=limit_memory
    ) as run:
        done = run.finish()
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(
        "^error: out of memory on cpu: train.batch_size is 4000, train.accumulate 1\n"
        "hint: set train.batch_size=2000 and train.accumulate=2 for the same steps, ",
        done.stderr,
        re.MULTILINE,
    )


@pytest.mark.gpu
def test_too_little_memory_of_a_gpu_is_reported():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    error = caught(lambda: torch.empty(1 << 46, device="cuda"))
    assert str(error).startswith("out of memory on cuda:0")
