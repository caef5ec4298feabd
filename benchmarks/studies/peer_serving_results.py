"""Stored results of servers side by side."""

from collections.abc import Sequence
from statistics import mean, median
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
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
