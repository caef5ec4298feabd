"""A training, once with each of several seeds."""

from pathlib import Path

from pipework.manifest import Manifest
from pipework.progress import Progress
from train.config import Config
from train.distributed import World
from train.run import train


def train_all(
    config: Config, out: Path, progress: Progress, *, world: World, resume: bool
) -> list[Manifest]:
    """Train into `out`, or with each of `train.seeds` into a run folder of its own below it.

    With `resume`, seeds that are complete are left as they are.

    Raises:
        PipeError: as `train.run.train`.
    """
    seeds = config.train.seeds
    if not seeds:
        return [train(config, out, progress, world=world, resume=resume)]
    manifests = []
    for number, seed in enumerate(seeds, start=1):
        folder = out / f"seed-{seed}"
        progress.note(f"seed {seed}, {number} of {len(seeds)}: {folder}")
        one = one_seed(config, seed)
        manifests.append(train(one, folder, progress, world=world, resume=resume))
    return manifests


def one_seed(config: Config, seed: int) -> Config:
    """Return the config of one run of several."""
    section = config.train.model_copy(update={"seed": seed, "seeds": ()})
    return config.model_copy(update={"train": section})
