"""A training, once with each of several seeds."""

from functools import partial
from pathlib import Path

from pipework.errors import CheckFailedError
from pipework.progress import Progress
from pipework.run_folder.manifest import Manifest
from pipework.train.config.run_config import Config
from pipework.train.loop.distributed import World
from pipework.train.run import train
from pipework.train.run_folder import is_complete


def train_all(
    config: Config, out: Path, progress: Progress, *, world: World, resume: bool
) -> dict[Path, Manifest]:
    """Train into `out`, or with each of `train.seeds` into a run folder of its own below it.

    With `resume`, seeds that are complete are left as they are. A seed that learned nothing does
    not keep the others from being trained.

    Returns:
        The manifests by run folder.

    Raises:
        PipeError: as `train.run.train`.
        CheckFailedError: a seed learned nothing; all are complete.
    """
    seeds = config.train.seeds
    if not seeds:
        return {out: train(config, out, progress, world=world, resume=resume)}
    manifests, poor = {}, []
    for number, seed in enumerate(seeds, start=1):
        folder = out / f"seed-{seed}"
        progress.note(f"seed {seed}, {number} of {len(seeds)}: {folder}")
        try:
            one = train(one_seed(config, seed), folder, progress, world=world, resume=resume)
            manifests[folder] = one
        except CheckFailedError as error:
            if not world.lead(partial(is_complete, folder)):
                raise
            poor.append(f"seed {seed}: {error}")
    if poor:
        raise CheckFailedError("; ".join(poor), f"compare the runs below {out}: pipe show RUN")
    return manifests


def one_seed(config: Config, seed: int) -> Config:
    """Return the config of one run of several."""
    section = config.train.model_copy(update={"seed": seed, "seeds": ()})
    return config.model_copy(update={"train": section})
