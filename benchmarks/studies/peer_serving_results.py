"""Stored results of servers side by side."""

from collections.abc import Sequence
from statistics import mean, median
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.benchmarks.studies.training_results import PIPEWORK
from pipework.run_folder.files import Record

AGREEMENT = 0.98  # of the labels: peers with fewer that are the checkpoint's are not compared


class Load(Record):
    """Clients that wait for their answers, each with so many texts a request."""

    texts_per_request: int
    clients: int


class Answers(Record):
    """What a server says of `rows` dev texts beside what the checkpoint says, in float32.

    `same` counts equal labels, `max_difference` is the largest of a probability, `accuracy` is
    against the labels of the file, in percent, as `checkpoint_accuracy` is. `truncates` says
    whether a text longer than the model takes gets the checkpoint's label too.
    """

    rows: int
    same: int
    max_difference: float
    accuracy: float
    checkpoint_accuracy: float
    truncates: bool

    @property
    def right(self) -> bool:
        """Whether all labels are the checkpoint's."""
        return self.same == self.rows and self.truncates

    @property
    def equal(self) -> bool:
        """Whether so many labels are the checkpoint's that its speed may be compared.

        98 of 100 must be, so that the accuracy differs by two points at most.
        """
        return self.same >= AGREEMENT * self.rows


class Candidate(Record):
    """A peer with settings: how it was started, without paths, and what it answered.

    `failed` says why it was not measured, in a line, None for one that was.
    """

    peer: str
    settings: str
    environment: str
    command: tuple[str, ...]
    variables: dict[str, str]
    answers: Answers | None
    failed: str | None

    @property
    def comparable(self) -> bool:
        """Whether it was measured, and answers as the checkpoint does."""
        return self.failed is None and self.answers is not None and self.answers.equal


class Failure(Record):
    """A candidate that failed in a round: the loads that are missing, and why, in a line."""

    peer: str
    settings: str
    loads: tuple[Load, ...]
    round: int
    reason: str

    @property
    def said(self) -> str:
        """The whole as a line."""
        return f"{self.peer}, {self.settings}, failed in round {self.round}: {self.reason}"


class Trial(Record):
    """A candidate under a load, in a process of its own.

    `round` 0 is the search for the best settings, the rounds after it are what is reported.
    Memory is of all its processes after the load, what they share counted once; `start_s` is from
    its start to its first answer. Percentiles are None where nothing was answered.
    """

    peer: str
    settings: str
    load: Load
    round: int
    texts_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: dict[str, int]
    memory_mib: float
    start_s: float


class Figures(Record):
    """A peer under a load: medians over its turns in all rounds, and the most memory of any."""

    settings: str
    texts_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    memory_mib: float
    start_s: float
    failed: int


class PeerServingResult(Record):
    """pipework beside others: the same weights, texts and processors, one server at a time.

    Each peer's settings are those that answered most in the search, by load, of those that answer
    as the checkpoint does. In each round the order is another one, and pipework is measured anew
    between every two of the others, since machines drift.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["peer_serving"] = "peer_serving"
    model: str
    engine: str
    texts: str
    seconds: float
    search_seconds: float
    rounds: int
    candidates: tuple[Candidate, ...]
    absent: dict[str, str]
    trials: tuple[Trial, ...]
    failures: tuple[Failure, ...] = ()
    environments: dict[str, dict[str, str]]
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def peers(self) -> tuple[str, ...]:
        """Who was measured, in the order in which they were tried."""
        return tuple(dict.fromkeys(trial.peer for trial in self.trials))

    @property
    def loads(self) -> tuple[Load, ...]:
        """What they were measured with."""
        return tuple(dict.fromkeys(trial.load for trial in self.trials))

    def tried(self, peer: str) -> tuple[Candidate, ...]:
        """Return all settings of a peer."""
        return tuple(one for one in self.candidates if one.peer == peer)

    def candidate(self, peer: str, settings: str) -> Candidate:
        """Return a peer with these settings."""
        return next(one for one in self.tried(peer) if one.settings == settings)

    def figures(self, peer: str, load: Load) -> Figures | None:
        """Return what a peer did under a load, None if it was not measured in any round."""
        found = [
            trial
            for trial in self.trials
            if (trial.peer, trial.load) == (peer, load) and trial.round
        ]
        if not found:
            return None
        return Figures(
            settings=found[0].settings,
            texts_per_s=median(trial.texts_per_s for trial in found),
            p50_ms=_median([trial.p50_ms for trial in found]),
            p99_ms=_median([trial.p99_ms for trial in found]),
            memory_mib=max(trial.memory_mib for trial in found),
            start_s=median(trial.start_s for trial in found),
            failed=sum(sum(trial.errors.values()) for trial in found),
        )

    def failed(self, peer: str, load: Load) -> tuple[Failure, ...]:
        """Return the times that a peer failed under a load, pipework more than once a round."""
        return tuple(one for one in self.failures if one.peer == peer and load in one.loads)

    def faster_than(self, own: str, peer: str, load: Load) -> float | None:
        """Return how many times the peer's texts a second are answered: the median of rounds.

        A peer is compared with what was measured last before and first after it in its round.
        """
        ratios = []
        for number in range(1, self.rounds + 1):
            row = [one for one in self.trials if (one.load, one.round) == (load, number)]
            for place, trial in enumerate(row):
                around = (*_first(own, row[:place][::-1]), *_first(own, row[place + 1 :]))
                if trial.peer == peer and trial.texts_per_s and around:
                    ratios.append(mean(around) / trial.texts_per_s)
        return median(ratios) if ratios else None


def _first(peer: str, trials: Sequence[Trial]) -> list[float]:
    """Return the texts a second of a peer's first trial, if it has one."""
    return [one.texts_per_s for one in trials if one.peer == peer][:1]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


HEAD = (
    *("model", "load", "server", "its best settings", "texts/s", "pipework is faster", "p50 ms"),
    *("p99 ms", "memory MiB", "start s", "labels as the checkpoint's"),
)
Row = tuple[str, ...]


def peer_rows(result: PeerServingResult) -> list[Row]:
    """Return the rows of a result: for each load the servers, the fastest first.

    Those that failed in every round come last.
    """
    rows = []
    for load in result.loads:
        found = [(peer, result.figures(peer, load)) for peer in result.peers]
        known = [(peer, one) for peer, one in found if one is not None]
        known.sort(key=lambda pair: -pair[1].texts_per_s)
        rows += [(result.model, _load(load), *_row(result, load, *one)) for one in known]
        rows += [
            (result.model, _load(load), *_failed_row(result, load, peer))
            for peer, one in found
            if one is None and result.failed(peer, load)
        ]
    return rows


def peer_notes(result: PeerServingResult) -> list[str]:
    """Return what the table cannot show: how much was tried, who failed, who was not there."""
    tried = f"{len(result.candidates)} settings of {len(result.peers)} servers were tried"
    notes = [f"{result.model}: {tried}, {result.search_seconds:g} s each; {_rounds(result)}"]
    for one in result.candidates:
        notes += [f"{one.peer}, {one.settings}, {said}" for said in _remarks(one)]
    notes += [one.said for one in result.failures]
    notes += [f"{name} was not measured: {why}" for name, why in result.absent.items()]
    return notes


def _remarks(one: Candidate) -> list[str]:
    """Say what is wrong with a candidate."""
    if one.failed is not None:
        return [f"was not measured: {one.failed}"]
    if one.answers is None:
        return []
    remarks = []
    if not one.answers.equal:
        right = f"{one.answers.same} of {one.answers.rows} labels are the checkpoint's"
        remarks.append(f"is not compared: {right}, fewer than {AGREEMENT:.0%}")
    if not one.answers.truncates:
        remarks.append("fails with a text that is too long")
    return remarks


def lines(result: PeerServingResult) -> list[str]:
    """Return a result for a terminal."""
    return [*(", ".join(row[1:]) for row in peer_rows(result)), *peer_notes(result)]


def _row(result: PeerServingResult, load: Load, peer: str, figures: Figures) -> Row:
    faster = result.faster_than(PIPEWORK, peer, load)
    settings = result.engine if peer == PIPEWORK else figures.settings
    lost = f", {figures.failed:,} requests failed" if figures.failed else ""
    missing = len({one.round for one in result.failed(peer, load)})
    lost += f", failed in {missing} of {result.rounds} rounds" if missing else ""
    return (
        f"**{peer}**" if peer == PIPEWORK else peer,
        settings,
        f"{figures.texts_per_s:,.0f}{lost}",
        "" if peer == PIPEWORK or faster is None else f"**{faster:.2f}** times",
        *("-" if one is None else tables.ms(one) for one in (figures.p50_ms, figures.p99_ms)),
        f"{figures.memory_mib:,.0f}",
        f"{figures.start_s:.1f}",
        _answers(result.candidate(peer, figures.settings).answers),
    )


def _failed_row(result: PeerServingResult, load: Load, peer: str) -> Row:
    settings = result.failed(peer, load)[0].settings
    answers = _answers(result.candidate(peer, settings).answers)
    return (peer, settings, "failed in every round", "", *("-",) * 4, answers)


def _answers(answers: Answers | None) -> str:
    if answers is None:
        return "-"
    score = f"accuracy {answers.accuracy:.1f} for {answers.checkpoint_accuracy:.1f}"
    return f"{answers.same} of {answers.rows}, ±{answers.max_difference:.0e}, {score}"


def _load(load: Load) -> str:
    texts = "single texts" if load.texts_per_request == 1 else f"{load.texts_per_request} a request"
    return f"{texts}, {load.clients} clients"


def _rounds(result: PeerServingResult) -> str:
    plural = "s" * (result.rounds > 1)
    return f"the best in {result.rounds} round{plural} of {result.seconds:g} s a load"
