"""Time the phases of training: `python -m pipework.benchmarks.studies.peers.phases CONFIG`.

Wraps the functions that the training loop calls with timers, trains, and prints seconds by phase as
one JSON object. A phase inside another counts for the outer phase, so that the phases add up; the
time outside all timers is "other".
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

from pipework.benchmarks.studies.records.training_results import PhaseTimes
from pipework.errors import CheckFailedError
from pipework.progress import NullProgress
from pipework.train.config.run_config import load_config
from pipework.train.loop.evaluator import ClassifierEvaluator
from pipework.train.loop.loop import Loop
from pipework.train.loop.model_inputs import TokenLoader
from pipework.train.loop.resume import CheckpointManager
from pipework.train.model.classifier import Classifier
from pipework.train.run import train as train_run

P = ParamSpec("P")
R = TypeVar("R")
WHOLE = "whole"
Attribute = tuple[object, str]
TIMED: dict[str, tuple[Attribute, ...]] = {
    WHOLE: ((Loop, "run"),),
    "evaluation": ((ClassifierEvaluator, "evaluate"),),
    "checkpoints": ((Loop, "_save"), (CheckpointManager, "save_best")),
    "batches": ((TokenLoader, "inputs"),),
    "forward": ((Classifier, "forward"),),
    "backward": ((torch.Tensor, "backward"),),
    "clipping": ((torch.nn.utils, "clip_grad_norm_"),),
    "optimizer": ((torch.optim.AdamW, "step"),),
}


class Stopwatch:
    """Seconds by phase; only the outermost phase inside the whole is counted."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []

    def around(self, phase: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return a function that calls `call` and adds its time to a phase."""

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
        """Return the times; the phases add up to the whole."""
        inside = {name: self.seconds[name] for name in TIMED if name != WHOLE}
        rest = self.seconds[WHOLE] - sum(inside.values())
        return PhaseTimes(seconds={**inside, "other": rest})


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def _timed(watch: Stopwatch) -> Iterator[None]:
    with ExitStack() as stack:
        for phase, attributes in TIMED.items():
            for owner, name in attributes:
                call = getattr(owner, name)
                stack.callback(setattr, owner, name, call)
                setattr(owner, name, watch.around(phase, call))
        yield


def measure_phases(config: str, overrides: list[str]) -> PhaseTimes:
    """Train in this process into a temporary folder and return the times."""
    watch = Stopwatch()
    nothing_learned = suppress(CheckFailedError)  # a few steps may not learn anything
    with tempfile.TemporaryDirectory() as scratch, _timed(watch), nothing_learned:
        train_run(load_config(config, overrides), Path(scratch) / "run", NullProgress())
    return watch.phases()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print the seconds."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.peers.phases", description=__doc__
    )
    parser.add_argument("config", help="config file, or the name of a recipe")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(arguments)
    sys.stdout.write(measure_phases(options.config, options.overrides).model_dump_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
