"""Short trainings of the tests."""

from pipework.errors import CheckFailedError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import open_encoder
from pipework.train.model.checkpoint_engine import open_reference
from pipework.train.run import train


def learn(config, run, progress=None):
    """Train a few steps; the run may learn nothing."""
    try:
        return train(config, run, progress or NullProgress())
    except CheckFailedError:
        return read_manifest(run)


def score(run, split="dev"):
    """The recorded score of a run."""
    manifest = read_manifest(run)
    return manifest.data.metrics[split].scores[manifest.task.metric]


def logits(run, rows):
    """The logits of the checkpoint of a run."""
    manifest = read_manifest(run)
    encodings = open_encoder(run, manifest).encode(rows)
    return open_reference(run, manifest).infer(encodings).values
