"""Short trainings of the tests."""

from pipework.errors import CheckFailedError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.train.run import train


def learn(config, run, progress=None):
    """Train a few steps; the run may learn nothing."""
    try:
        return train(config, run, progress or NullProgress())
    except CheckFailedError:
        return read_manifest(run)
