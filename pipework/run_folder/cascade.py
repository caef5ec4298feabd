"""The record of a cascade: a first stage that answers texts before an engine does."""

import hashlib

from pipework.errors import ChangedFileError
from pipework.record import Record
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.proof_subject import ProofSubject

FOLDER = "first-stage"  # of the run folder: a copy of the run of the first stage with one engine
HINT = "export it again: pipe export RUN --to cascade; or serve the engine alone: --engine {}"


class CascadeRecord(Record):
    """A first stage, the lowest score with which it answers, and the rows that prove it.

    Attributes:
        first: the run that the first stage was copied from.
        first_digest: the digest of its engine.
        engine: the engine that computes the other texts.
        engine_digest: its digest.
        min_score: the lowest score of a text that the first stage answers.
        max_difference: the limit on the share of all texts whose label differs from the engine's,
            with 95 % confidence.
        source: the rows that chose the score and prove the limit.
        rows: their number.
        answered: those of them that the first stage answers.
        differing: those of them with another label than the engine's.
        encode_us: microseconds of the tokenization of a text.
        first_us: microseconds of the first stage for a text, on one processor.
        engine_us: microseconds of the engine for a text, on all processors.
        score: the score of the engine on these rows by the metric of the task, if they have labels.
        gain: the score of the cascade minus this score, with its 95 % confidence interval.
        seal: a digest of the other fields and of the model; see `sealed`.
    """

    first: str
    first_digest: str
    engine: str
    engine_digest: str
    min_score: float
    max_difference: float
    source: str
    rows: int
    answered: int
    differing: int
    encode_us: float
    first_us: float
    engine_us: float
    score: float | None = None
    gain: tuple[float, float, float] | None = None
    seal: str = ""

    @property
    def share(self) -> float:
        """The share of the rows that the first stage answers."""
        return self.answered / self.rows

    @property
    def speedup(self) -> float:
        """How many times as many texts per second are expected as with the engine alone."""
        alone = self.encode_us + self.engine_us
        return alone / (self.encode_us + self.first_us + (1 - self.share) * self.engine_us)

    def sealed(self, subject: ProofSubject) -> "CascadeRecord":
        """Return the record with the seal for a model."""
        text = self.model_dump_json(exclude={"seal"}) + subject.model_dump_json()
        return self.model_copy(update={"seal": hashlib.sha256(text.encode()).hexdigest()})

    def check(self, subject: ProofSubject, engine: EngineRecord | None) -> None:
        """Check that the cascade was proven as it is recorded, for a model and its engine.

        Raises:
            ChangedFileError: it was not.
        """
        if engine is None or engine.digest != self.engine_digest:
            message = f"the cascade was proven with another engine {self.engine} than the run has"
        elif self.sealed(subject).seal != self.seal:
            message = "the cascade was proven with another model or score than the manifest has"
        else:
            return
        raise ChangedFileError(message, HINT.format(self.engine))

    def __str__(self) -> str:
        """The shares in a line."""
        shown = (
            f"{self.first} answers {self.share:.1%} of the texts; {self.differing} of {self.rows:,}"
            f" {self.source} rows get another label than from {self.engine}, at most "
            f"{self.max_difference:.2%} with 95 % confidence; expected speedup {self.speedup:.1f}"
        )
        if self.score is not None and self.gain is not None:
            gain, low, high = self.gain
            shown += (
                f"; score {self.score:.4f} {gain:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"
            )
        return shown
