"""Stored results of a server under load."""

from statistics import mean
from typing import Literal

from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record


class Memory(Record):
    """Resident memory of the server while texts of all lengths came, sampled once a second."""

    minutes: float
    after_first_minute_mib: float
    at_end_mib: float
    peak_mib: float


class ServingResult(Record):
    """A server under load, with its generator on the same processors.

    `offline_texts_per_s` is of the engine alone, in the server's largest batches, in turns with the
    rest; `batch_ms` is the median time of one such batch. `several_texts_per_s` and
    `single_texts_per_s`, the peak, are means over the turns of clients that wait for their answers,
    `more_clients_texts_per_s` that of `more_clients` with single texts;
    `half`, `double` and `after` are single texts at half of the peak, at twice it, and at half of
    it at once after that; `peak` is one of the levels that the peak is the mean of.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["serving"] = "serving"
    model: str
    engine: str
    texts: str
    batch_tokens: int
    offline_texts_per_s: tuple[float, ...]
    batch_ms: float
    several_texts_per_s: float
    several: int
    single_texts_per_s: float
    more_clients: int | None = None
    more_clients_texts_per_s: float | None = None
    half: Level
    double: Level
    peak: Level | None = None
    after: Level
    memory: Memory | None
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def offline(self) -> float:
        """Texts a second of the engine alone."""
        return mean(self.offline_texts_per_s)
