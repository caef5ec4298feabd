"""Stored results of presets: what each family has of parameters, and how fast it learns."""

from collections.abc import Iterator
from statistics import median
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record

HEAD = (
    "preset",
    "layers x width",
    "family",
    "parameters",
    "of them embeddings",
    "pretraining, tokens/s",
    "of BERT's",
)


class PresetSpeed(Record):
    """A preset as a family. `parameters` are of the encoder without heads.

    `tokens_per_s` is of each round of steps: forward, backward and update, in pretraining.
    """

    preset: str
    family: str
    layers: int
    width: int
    parameters: int
    embeddings: int
    tokens_per_s: tuple[float, ...]

    @property
    def speed(self) -> float:
        """The median of the rounds, tokens/s."""
        return median(self.tokens_per_s)


class PresetsResult(Record):
    """Presets side by side: families took turns, round by round, on the same rows."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["presets"] = "presets"
    vocabulary: int
    row_tokens: int
    rows_per_step: int
    steps_per_round: int
    precision: str
    presets: tuple[PresetSpeed, ...]
    command: tuple[str, ...]
    provenance: Provenance


def preset_rows(result: PresetsResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table under HEAD."""
    first = {one.preset: one.speed for one in reversed(result.presets)}
    for one in result.presets:
        yield (
            one.preset,
            f"{one.layers} x {one.width}",
            one.family.upper(),
            f"{one.parameters / 1e6:.2f} M",
            f"{one.embeddings / 1e6:.2f} M",
            f"{one.speed:,.0f}",
            f"{one.speed / first[one.preset]:.2f}",
        )
