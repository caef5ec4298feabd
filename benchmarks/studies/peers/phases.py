"""Where the time of training goes, measured from outside: `python -m pipework.benchmarks.studies.peers.phases`.

Stands timers around what the loop calls, trains, and prints seconds by phase as one JSON object.
A phase inside another counts for the outer one, so that they add up; what no timer saw is "other".
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from pipework.benchmarks.studies.training_results import PhaseTimes
from pipework.errors import CheckFailedError
from pipework.progress import Silent
from pipework.train.config.run_config import load_config
from pipework.train.loop.evaluator import Judge
from pipework.train.loop.loop import Loop
from pipework.train.loop.model_inputs import TokenFeed
from pipework.train.loop.resume import Keeper
from pipework.train.model.classifier import Classifier
from pipework.train.run import train as train_run

P = ParamSpec("P")
R = TypeVar("R")
WHOLE = "whole"
Place = tuple[object, str]
PLACES: dict[str, tuple[Place, ...]] = {
    WHOLE: ((Loop, "run"),),
    "evaluation": ((Judge, "evaluate"),),
    "checkpoints": ((Loop, "_save"), (Keeper, "save_best")),
    "batches": ((TokenFeed, "inputs"),),
    "forward": ((Classifier, "forward"),),
    "backward": ((torch.Tensor, "backward"),),
    "clipping": ((torch.nn.utils, "clip_grad_norm_"),),
    "optimizer": ((torch.optim.AdamW, "step"),),
}


class Stopwatch:
    """Seconds by phase; only the outermost phase runs, inside the whole."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []

    def around(self, phase: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return a function that does the same and counts its time for a phase."""

        @wraps(call)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            if phase != WHOLE and self._running != [WHOLE]:
                return call(*args, **kwargs)
            self._running.append(phase)
            start = _now()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[phase] += _now() - start
                self._running.pop()

        return timed

    def phases(self) -> PhaseTimes:
        """Return what was counted; the phases add up to the whole."""
        inside = {name: self.seconds[name] for name in PLACES if name != WHOLE}
        rest = self.seconds[WHOLE] - sum(inside.values())
        return PhaseTimes(seconds={**inside, "other": rest})


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def _watched(watch: Stopwatch) -> Iterator[None]:
    with ExitStack() as stack:
        for phase, places in PLACES.items():
            for owner, name in places:
                call = getattr(owner, name)
                stack.callback(setattr, owner, name, call)
                setattr(owner, name, watch.around(phase, call))
        yield


def measure(config: str, overrides: list[str]) -> PhaseTimes:
    """Train in this process, into a folder that is thrown away."""
    watch = Stopwatch()
    taught_nothing = suppress(CheckFailedError)  # as so few steps may
    with tempfile.TemporaryDirectory() as scratch, _watched(watch), taught_nothing:
        train_run(load_config(config, overrides), Path(scratch) / "run", Silent())
    return watch.phases()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print the seconds."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.phases", description=__doc__
    )
    parser.add_argument("config", help="config file, or the name of a recipe")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args(arguments)
    sys.stdout.write(measure(given.config, given.overrides).model_dump_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
