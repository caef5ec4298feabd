"""Stored results of a comparison of servers."""

from collections.abc import Sequence
from statistics import mean, median
from typing import ClassVar, Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.benchmarks.studies.records.training_results import PIPEWORK
from pipework.record import Record

AGREEMENT = 0.98  # share of labels equal to the checkpoint's below which a peer is excluded
HEAD = (
    *("model", "load", "server", "best settings", "texts/s", "speedup of pipework", "p50 ms"),
    *("p99 ms", "memory MiB", "start s", "labels equal to the checkpoint's"),
)
Row = tuple[str, ...]


class ClientLoad(Record):
    """A closed-loop load: the number of clients, and the texts per request."""

    texts_per_request: int
    clients: int


class AnswerCheck(Record):
    """A server's predictions for `rows` dev texts compared with the float32 checkpoint's.

    `same` counts equal labels; `max_difference` is the largest difference of a probability;
    `accuracy` and `checkpoint_accuracy` are measured against the true labels, in percent.
    `truncates` is whether a text longer than the model's limit gets the checkpoint's label, too.
    """

    rows: int
    same: int
    max_difference: float
    accuracy: float
    checkpoint_accuracy: float
    truncates: bool

    @property
    def equal(self) -> bool:
        """Whether enough labels equal the checkpoint's for the speed to be comparable.

        At least 98 % must be equal, so that the accuracy differs by at most two points.
        """
        return self.same >= AGREEMENT * self.rows


class Candidate(Record):
    """A peer with settings, and its check of predictions.

    `failed` is the reason why it was not measured, on one line, or None.
    """

    peer: str
    settings: str
    answers: AnswerCheck | None
    failed: str | None

    @property
    def comparable(self) -> bool:
        """Whether it was measured and its predictions agree with the checkpoint's."""
        return self.failed is None and self.answers is not None and self.answers.equal


class PeerMeasurement(Record):
    """A candidate measured under a load, in processes of its own.

    `round` 0 is the search for the best settings; the later rounds are reported. `memory_mib` is
    the PSS of all its processes after the load; `start_s` is the time from its start to its first
    response. Percentiles are None if no request was completed.
    """

    peer: str
    settings: str
    load: ClientLoad
    round: int
    texts_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: dict[str, int]
    memory_mib: float
    start_s: float


class Figures(Record):
    """A peer under a load: medians over all its measurements, and the maximum of memory."""

    settings: str
    texts_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    memory_mib: float
    start_s: float
    failed: int


class PeerServingResult(StudyResult):
    """pipework compared with other servers on the same weights, texts and processors.

    One server runs at a time. Each peer is measured with the settings that reached the highest rate
    in the search for a load, among those whose predictions agree with the checkpoint's. The order
    alternates between rounds, and pipework is measured between every two other servers because the
    speed of the machine drifts. `failures` has a line for each server that failed in a round.
    """

    TABLE: ClassVar[str] = "peers_serving"
    HEAD: ClassVar[tuple[str, ...]] = HEAD
    kind: Literal["peer_serving"] = "peer_serving"
    model: str
    engine: str
    texts: str
    seconds: float
    search_seconds: float
    rounds: int
    candidates: tuple[Candidate, ...]
    absent: dict[str, str]
    trials: tuple[PeerMeasurement, ...]
    failures: tuple[str, ...] = ()
    command: tuple[str, ...]

    @property
    def peers(self) -> tuple[str, ...]:
        """The measured peers in the order of the search."""
        return tuple(dict.fromkeys(trial.peer for trial in self.trials))

    @property
    def loads(self) -> tuple[ClientLoad, ...]:
        """The measured loads."""
        return tuple(dict.fromkeys(trial.load for trial in self.trials))

    def candidate(self, peer: str, settings: str) -> Candidate:
        """Return the candidate with these settings."""
        named = (each for each in self.candidates if each.peer == peer)
        return next(each for each in named if each.settings == settings)

    def figures(self, peer: str, load: ClientLoad) -> Figures | None:
        """Return the medians of a peer under a load, None if it was not measured in any round."""
        trials = [
            trial
            for trial in self.trials
            if (trial.peer, trial.load) == (peer, load) and trial.round
        ]
        if not trials:
            return None
        return Figures(
            settings=trials[0].settings,
            texts_per_s=median(trial.texts_per_s for trial in trials),
            p50_ms=_median([trial.p50_ms for trial in trials]),
            p99_ms=_median([trial.p99_ms for trial in trials]),
            memory_mib=max(trial.memory_mib for trial in trials),
            start_s=median(trial.start_s for trial in trials),
            failed=sum(sum(trial.errors.values()) for trial in trials),
        )

    def speedup_over(self, own: str, peer: str, load: ClientLoad) -> float | None:
        """Return the rate of `own` divided by the peer's: the median over the rounds.

        A peer is compared with the nearest measurements of `own` before and after it in its round.
        """
        ratios = []
        for number in range(1, self.rounds + 1):
            row = [trial for trial in self.trials if (trial.load, trial.round) == (load, number)]
            for index, trial in enumerate(row):
                around = (*_first(own, row[:index][::-1]), *_first(own, row[index + 1 :]))
                if trial.peer == peer and trial.texts_per_s and around:
                    ratios.append(mean(around) / trial.texts_per_s)
        return median(ratios) if ratios else None

    def table_rows(self) -> list[Row]:
        """Return the rows: for each load the servers, fastest first."""
        rows = []
        for load in self.loads:
            by_peer = [(peer, self.figures(peer, load)) for peer in self.peers]
            measured = [(peer, figures) for peer, figures in by_peer if figures is not None]
            measured.sort(key=lambda pair: -pair[1].texts_per_s)
            rows += [(self.model, _load(load), *_row(self, load, *pair)) for pair in measured]
        return rows

    def notes(self) -> list[str]:
        """Return the size of the search, failures, and absent servers."""
        tried = f"{len(self.candidates)} settings of {len(self.peers)} servers were tried"
        notes = [f"{self.model}: {tried} for {self.search_seconds:g} s each; {_rounds(self)}"]
        for candidate in self.candidates:
            name = f"{candidate.peer}, {candidate.settings}"
            notes += [f"{name}, {remark}" for remark in _remarks(candidate)]
        notes += self.failures
        notes += [f"{name} was not measured: {reason}" for name, reason in self.absent.items()]
        return notes


def _first(peer: str, trials: Sequence[PeerMeasurement]) -> list[float]:
    """Return the texts/s of a peer's first measurement, if there is any."""
    return [trial.texts_per_s for trial in trials if trial.peer == peer][:1]


def _median(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def _remarks(candidate: Candidate) -> list[str]:
    """Return the faults of a candidate."""
    if candidate.failed is not None:
        return [f"was not measured: {candidate.failed}"]
    if candidate.answers is None:
        return []
    remarks = []
    if not candidate.answers.equal:
        equal = f"{candidate.answers.same} of {candidate.answers.rows} labels"
        limit = f"fewer than {AGREEMENT:.0%}"
        remarks.append(f"was excluded: {equal} equal the checkpoint's, {limit}")
    if not candidate.answers.truncates:
        remarks.append("fails on a text longer than the model's limit")
    return remarks


def _row(result: PeerServingResult, load: ClientLoad, peer: str, figures: Figures) -> Row:
    speedup = result.speedup_over(PIPEWORK, peer, load)
    settings = result.engine if peer == PIPEWORK else figures.settings
    failed = f", {figures.failed:,} requests failed" if figures.failed else ""
    return (
        f"**{peer}**" if peer == PIPEWORK else peer,
        settings,
        f"{figures.texts_per_s:,.0f}{failed}",
        "" if peer == PIPEWORK or speedup is None else f"**{speedup:.2f}**",
        *("-" if time is None else tables.ms(time) for time in (figures.p50_ms, figures.p99_ms)),
        f"{figures.memory_mib:,.0f}",
        f"{figures.start_s:.1f}",
        _answers(result.candidate(peer, figures.settings).answers),
    )


def _answers(answers: AnswerCheck | None) -> str:
    if answers is None:
        return "-"
    score = f"accuracy {answers.accuracy:.1f} (checkpoint {answers.checkpoint_accuracy:.1f})"
    return f"{answers.same} of {answers.rows}, ±{answers.max_difference:.0e}, {score}"


def _load(load: ClientLoad) -> str:
    count = load.texts_per_request
    texts = "single texts" if count == 1 else f"{count} texts per request"
    return f"{texts}, {load.clients} clients"


def _rounds(result: PeerServingResult) -> str:
    plural = "s" * (result.rounds > 1)
    return (
        f"the best were measured in {result.rounds} round{plural} of {result.seconds:g} s per load"
    )
