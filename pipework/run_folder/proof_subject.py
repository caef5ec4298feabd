"""What the parity check of an engine depends on besides its files, as digests."""

import hashlib

from pydantic import BaseModel

from pipework.record import Record


class ProofSubject(Record):
    """Digests of the model that an engine was checked with; "" for a part that a run lacks.

    Attributes:
        checkpoint: names and contents of the checkpoint's files; "" in a container image.
        tokenizer: contents of the tokenizer.
        labels: the labels in the order of the logits.
        task: the rest of the task: kind, metric, thresholds, lowest scores, interval.
        input: fields, maximum length, padding.
        model: head, and scale of the targets.
    """

    checkpoint: str = ""
    tokenizer: str = ""
    labels: str = ""
    task: str = ""
    input: str = ""
    model: str = ""

    def differing(self, current: "ProofSubject") -> list[str]:
        """Return the names of the parts of a run that are not what was checked."""
        return [name for name, digest in current if digest and digest != getattr(self, name)]


def settings_digest(settings: BaseModel, *, without: set[str]) -> str:
    """Return the digest of settings that differ from their defaults, except those in `without`.

    A default that a later version adds does not change the digest.
    """
    text = settings.model_dump_json(exclude_defaults=True, exclude=without)
    return hashlib.sha256(text.encode()).hexdigest()
