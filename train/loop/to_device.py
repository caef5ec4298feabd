"""Copies arrays to the device of a model."""

from typing import Any

import torch
from numpy.typing import NDArray


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device; copies to a GPU are asynchronous."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    # From memory that is not page-locked, a copy would wait for the GPU.
    return tensor.pin_memory().to(device, non_blocking=True)
