"""Evaluation on dev during training; each process computes its share of the rows.

Shapes: N rows of dev.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.progress import Progress
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.outputs import Outputs, Values, rows_of
from pipework.tasks.task import Task
from pipework.train.data.batches import BATCH_TOKENS, Rows, rank_share, token_batches
from pipework.train.loop.determinism import exact_float32
from pipework.train.loop.distributed import World
from pipework.train.loop.model_inputs import BatchLoader

T = TypeVar("T")


class Evaluator(Protocol):
    """Evaluates a model on dev."""

    def evaluate(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Evaluation:
        """Return the same evaluation in every process."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassifierEvaluator:
    """Evaluates a classifier on the rows of `loader`, whose `label_array` is `truth`."""

    loader: BatchLoader
    truth: NDArray[np.generic]
    task: Task
    world: World
    progress: Progress

    def evaluate(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Evaluation:
        """Return the same evaluation in every process."""
        # Rounding to bf16 would change the rank order of close values of a regression.
        exact = self.task.has_values
        with exact_float32() if exact else nullcontext():
            outputs = self.outputs(model, None if exact else autocast)
        return self.world.lead(lambda: self._score(outputs))

    def _score(self, outputs: Outputs | None) -> Evaluation:
        assert outputs is not None, "rank 0 gathers all outputs"
        task = self.task.with_thresholds(outputs.values, self.truth)
        return task.evaluate(outputs, self.truth)

    def outputs(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Outputs | None:
        """Return all outputs in rank 0, None in the others; each rank computes its own rows."""

        def compute(batch: Rows) -> Values:
            device = self.world.device.type
            with torch.autocast(device, autocast, enabled=autocast is not None):
                values: Values = model(**self.loader.inputs(batch)).float().cpu().numpy()
            return values

        own = compute_batches(model, self.loader, compute, self.world, self.progress)
        parts = self.world.gather(own)
        if parts is None:
            return None
        batches = [*chain(*parts)]
        offsets = self.task.row_offsets(self.loader.lengths.tolist())
        rows = rows_of(offsets, np.concatenate([batch for batch, _ in batches]))
        gathered = np.concatenate([values for _, values in batches])
        values = np.empty_like(gathered)
        values[rows] = gathered
        return Outputs(values, offsets)


def compute_batches(
    model: torch.nn.Module,
    loader: BatchLoader,
    compute: Callable[[Rows], T],
    world: World,
    progress: Progress,
) -> list[tuple[Rows, T]]:
    """Call `compute`, with the model in evaluation mode, for batches of this process's rows.

    Returns:
        Each batch of rows of similar length, with its result.
    """
    order = np.argsort(loader.lengths, kind="stable")
    own = rank_share(order, world.rank, world.size)
    results = []
    was_training = model.training
    model.eval()
    with progress.stage("evaluate", len(own), "rows"), torch.inference_mode():
        for batch in token_batches(loader.lengths, own, BATCH_TOKENS):
            results.append((batch, compute(batch)))
            progress.advance(len(batch))
    model.train(was_training)
    return results
