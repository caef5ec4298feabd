"""Where chance comes from: seeded in one place, kept in a checkpoint, and put back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

RandomState = dict[str, torch.Tensor]


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch.

    The same seed on the same machine, versions and thread count gives the same run.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (libraries draw from the global state)
    torch.manual_seed(seed)


def seed_process(seed: int, rank: int, step: int = 0) -> None:
    """Seed what differs between processes: the dropout of each."""
    seed_everything(int(np.random.SeedSequence((seed, rank, step)).generate_state(1)[0]))


@contextmanager
def exact_products() -> Iterator[None]:
    """Multiply in float32 itself inside the block, where TF32 was allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def random_state(device: torch.device) -> RandomState:
    """Return the state of every generator, as tensors."""
    _, words, _ = random.getstate()
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    keys = np.append(state["state"]["key"], state["state"]["pos"]).astype(np.int64)
    found = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(keys),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_random(state: RandomState, device: torch.device) -> None:
    """Put every generator back to where it was."""
    random.setstate((3, tuple(state["python"].tolist()), None))
    *keys, place = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), place, 0, 0.0))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
