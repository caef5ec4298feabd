"""Seeds of the random generators, and their states in checkpoints."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

RandomState = dict[str, torch.Tensor]


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch.

    With the same seed, machine, versions and thread count a run is reproducible.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (libraries use the global state)
    torch.manual_seed(seed)


def seed_process(seed: int, rank: int, step: int = 0) -> None:
    """Seed each process differently, so that their dropout masks differ."""
    seed_everything(int(np.random.SeedSequence((seed, rank, step)).generate_state(1)[0]))


def exact_float32() -> AbstractContextManager[None]:
    """Disable TF32 inside the block, see `float32_products`."""
    return float32_products(tf32=False)


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Allow or disable TF32 for matrix products, convolutions and recurrent layers in the block."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def reproducible(seed: int, *, tf32: bool) -> Iterator[None]:
    """Seed all generators, and allow or disable TF32 in the block."""
    seed_everything(seed)
    with float32_products(tf32=tf32):
        yield


def random_state(device: torch.device) -> RandomState:
    """Return the states of all generators as tensors."""
    _, words, _ = random.getstate()
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    keys = np.append(state["state"]["key"], state["state"]["pos"]).astype(np.int64)
    states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(keys),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random(state: RandomState, device: torch.device) -> None:
    """Restore the states of all generators."""
    random.setstate((3, tuple(state["python"].tolist()), None))
    *keys, position = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, 0, 0.0))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
