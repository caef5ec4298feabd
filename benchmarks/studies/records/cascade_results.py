"""Stored results of cascades: a first stage before an engine, at several limits."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pipework.benchmarks.results_schema.comparison import ComparedLevel, Quantity, Ratio
from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.record import Record


class CascadePoint(Record):
    """A cascade at a limit.

    Attributes:
        max_difference: the limit on the share of texts with another label than the engine's.
        answered: the share of the measured rows that the first stage answers.
        differing: the share of the measured rows with another label than the engine's.
        gain: change of the score in points, with its 95 % confidence interval.
        levels: its server compared with a server of the engine alone, by load.
    """

    max_difference: float
    answered: float
    differing: float
    gain: tuple[float, float, float]
    levels: tuple[ComparedLevel, ...]

    @property
    def rates(self) -> tuple[Ratio, ...]:
        """The texts/s of both servers, by load."""
        ratios = (ratio for level in self.levels for ratio in level.ratios)
        return tuple(ratio for ratio in ratios if ratio.quantity is Quantity.TEXTS_PER_S)


class CascadesResult(StudyResult):
    """A first stage before an engine at several limits, measured on `rows` rows of a split.

    The limits are proven on `proof_rows` other rows, those of `source`. `refused` has the limits
    that these rows cannot show, and the reasons. `score` is that of the engine in percent.
    `encode_us`, `first_us` and `engine_us` are the microseconds of a text: tokenization, the first
    stage on one processor, the engine on all processors. `texts_per_request` texts are sent per
    request.
    """

    TABLE: ClassVar[str] = "cascades"
    kind: Literal["cascades"] = "cascades"
    dataset: str
    first: str
    engine: str
    split: str
    rows: int
    metric: str
    score: float
    source: str
    proof_rows: int
    encode_us: float
    first_us: float
    engine_us: float
    texts_per_request: int
    points: tuple[CascadePoint, ...]
    refused: dict[str, str]
    commands: tuple[str, ...]

    def head(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        names = [level.name for level in self.points[0].levels] if self.points else []
        speeds = (f"texts/s, {name}" for name in names)
        return ("limit", "answered first", "other label", "score change, points", *speeds)

    def table_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each limit."""
        for point in self.points:
            gain, low, high = point.gain
            yield (
                f"{point.max_difference:.1%}",
                f"{point.answered:.1%}",
                f"{point.differing:.2%}",
                f"{gain:+.2f} ({low:+.2f} to {high:+.2f})",
                *(
                    f"**{rate.after:,.0f}**, alone {rate.before:,.0f}: "
                    f"{rate.ratio:.2f} ({rate.low:.2f} to {rate.high:.2f})"
                    for rate in point.rates
                ),
            )

    def title(self) -> str:
        """Return the names of both models, and the rows."""
        return (
            f"**{self.dataset}**: {self.first} before {self.engine}, measured on {self.rows:,} "
            f"{self.split} rows ({self.metric} of the engine {self.score:.2f}), "
            f"{self.texts_per_request} texts per request. The limits are proven on "
            f"{self.proof_rows:,} rows of {self.source}. Microseconds for a text: tokenization "
            f"{self.encode_us:.0f}, first stage {self.first_us:.0f}, engine {self.engine_us:.0f}."
        )

    def notes(self) -> list[str]:
        """Return the refused limits."""
        return [f"{limit} is refused: {why}" for limit, why in self.refused.items()]
