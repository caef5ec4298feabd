"""Stored results of presets: parameters and pretraining speed by family."""

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
    "embedding parameters",
    "pretraining, tokens/s",
    "relative to BERT",
)


class PresetSpeed(Record):
    """A preset in one family. `parameters` counts the encoder without heads.

    `tokens_per_s` is the pretraining rate of each round (forward, backward, optimizer step).
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
        """The median tokens/s of the rounds."""
        return median(self.tokens_per_s)


class PresetsResult(Record):
    """Presets in both families, measured in turns, round by round, on the same rows."""

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
    """Yield one table row per preset and family."""
    bert = {preset.preset: preset.speed for preset in reversed(result.presets)}
    for preset in result.presets:
        yield (
            preset.preset,
            f"{preset.layers} x {preset.width}",
            preset.family.upper(),
            f"{preset.parameters / 1e6:.2f} M",
            f"{preset.embeddings / 1e6:.2f} M",
            f"{preset.speed:,.0f}",
            f"{preset.speed / bert[preset.preset]:.2f}",
        )
