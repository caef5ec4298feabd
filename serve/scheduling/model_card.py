"""What one version of a model says of itself, for those who look at a running server."""

from dataclasses import dataclass

from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest
from pipework.run_folder.task import TaskKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A version of a model.

    Attributes:
        kind: whether it gives one label, several, or a number.
        labels: in the order of its logits.
        thresholds: of each label, where it gives several, and it was given some.
        entities: whether a text has two marked entities.
        precision: that its engine computes in.
    """

    kind: TaskKind
    labels: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    entities: bool = False
    precision: str = ""

    @classmethod
    def of(cls, manifest: Manifest, record: EngineRecord) -> "Card":
        """Return the card of a run that is answered with one of its engines."""
        return cls(
            kind=manifest.task.kind,
            labels=tuple(manifest.task.labels),
            thresholds=manifest.task.thresholds,
            entities=manifest.input.marked,
            precision=str(record.precision),
        )
