"""The log of a training run, and the curves of the metrics in it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LOG = "log.jsonl"
PAGE = "report.html"
NOT_CURVES = ("step", "group", "elapsed_s")
# The points (step, value) of each metric, by `group/name`.
Curves = Mapping[str, Sequence[tuple[int, float]]]


def lines(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of log.jsonl; none if there is no log.

    Each has the `step`, the `group` ("train" or "dev"), and `elapsed_s` since the start of the run.
    """
    with suppress(OSError), (run / LOG).open(encoding="utf-8") as stream:
        for line in stream:
            with suppress(ValueError):  # a killed run may leave a truncated last line
                yield json.loads(line)


def last_line(run: Path) -> dict[str, Any]:
    """Return the last complete line of log.jsonl; empty if there is none."""
    last: dict[str, Any] = {}
    for line in lines(run):
        last = line
    return last


def read_curves(run: Path) -> Curves:
    """Return the curves of a run.

    A resumed run repeats the steps after its last checkpoint: the later line replaces the earlier.
    """
    curves: dict[str, dict[int, float]] = {}
    for line in lines(run):
        for name, value in line.items():
            if name not in NOT_CURVES:
                curve = curves.setdefault(f"{line['group']}/{name}", {})
                curve[int(line["step"])] = float(value)
    return {name: sorted(curve.items()) for name, curve in curves.items()}
