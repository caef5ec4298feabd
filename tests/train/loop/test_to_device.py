"""Copies to a GPU, with a fake of its tensors."""

import re
from pathlib import Path

import numpy as np
import torch

from pipework.train.loop.to_device import to_device

ROOT = Path(__file__).parents[3]
BLOCKING = re.compile(r"from_numpy\([^\n]*\.to\(|tensor\([^\n]*device=")


class FakeTensor:
    """Records how it is copied."""

    def __init__(self):
        self.calls = []

    def pin_memory(self):
        self.calls.append("pin_memory")
        return self

    def to(self, device, *, non_blocking=False):
        self.calls.append((device.type, non_blocking))
        return self


def test_a_copy_to_a_gpu_is_asynchronous_and_from_page_locked_memory(monkeypatch):
    array = np.arange(3)
    assert to_device(array, torch.device("cpu")).data_ptr() == array.ctypes.data
    monkeypatch.setattr(torch, "from_numpy", lambda _: FakeTensor())
    assert to_device(array, torch.device("cuda")).calls == ["pin_memory", ("cuda", True)]


def test_no_step_of_the_training_waits_for_a_copy_to_the_gpu():
    files = [
        *(ROOT / "train/loop").glob("*.py"),
        ROOT / "train/distill/losses.py",
        ROOT / "train/pretrain/model_inputs.py",
    ]
    assert [path.name for path in files if BLOCKING.search(path.read_text())] == []
