"""What a run wrote to its log, as curves over its steps.

Shapes: S steps.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipework.train.report.run_log import LOG

NOT_CURVES = ("step", "group", "elapsed_s")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One figure over the steps at which it was logged."""

    steps_S: tuple[int, ...]
    values_S: tuple[float, ...]

    @property
    def best(self) -> tuple[int, float]:
        """The first step with the highest value, and that value."""
        place = max(range(len(self.values_S)), key=self.values_S.__getitem__)
        return self.steps_S[place], self.values_S[place]


def read_curves(run: Path) -> dict[str, Curve]:
    """Return the curves of a run by `group/name`; a step that was taken twice counts once.

    A run that was resumed takes the steps after its last checkpoint again: the later line counts.
    """
    found: dict[str, dict[int, float]] = {}
    with (run / LOG).open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError):  # a killed run may have left a line cut short
                _add(json.loads(line), found)
    return {
        name: Curve(
            steps_S=tuple(sorted(points)), values_S=tuple(points[s] for s in sorted(points))
        )
        for name, points in found.items()
    }


def _add(line: Mapping[str, object], found: dict[str, dict[int, float]]) -> None:
    for name, value in line.items():
        if name not in NOT_CURVES and isinstance(value, int | float):
            found.setdefault(f"{line['group']}/{name}", {})[int(str(line["step"]))] = float(value)
