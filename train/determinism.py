"""One seed for a run, set in one place."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> np.random.Generator:
    """Seed Python, NumPy and torch, and return the generator that orders the batches.

    The same seed on the same machine, versions and thread count gives the same run.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (libraries draw from the global state)
    torch.manual_seed(seed)
    return np.random.default_rng(seed)
