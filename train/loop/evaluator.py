"""How good the model is on dev while it trains; every process answers its share of the rows.

Shapes: N rows, C classes.
"""

from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.progress import Progress
from pipework.run_folder.task import Task, TaskKind
from pipework.scoring.evaluation import Evaluation, evaluate
from pipework.scoring.predictions import choose_thresholds
from pipework.train.data.batches import BATCH_TOKENS, Rows, share, token_batches
from pipework.train.loop.determinism import exact_products
from pipework.train.loop.distributed import World
from pipework.train.loop.model_inputs import Feed


class Judging(Protocol):
    """What tells how good a model is on dev."""

    def evaluate(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Evaluation:
        """Return the same evaluation in every process."""


class Judge:
    """Scores a model on the rows of a split."""

    def __init__(
        self,
        feed: Feed,
        truth: NDArray[np.generic],
        task: Task,
        *,
        world: World,
        progress: Progress,
    ) -> None:
        """Judge on the rows of `feed`, whose `truth` is as `pipework.scoring.evaluation.truth` gives it."""
        self._feed = feed
        self._truth = truth
        self._task = task
        self._world = world
        self._progress = progress

    def evaluate(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Evaluation:
        """Return the same evaluation in every process.

        A regression is judged in float32: rounding orders values that lie close together anew.
        """
        exact = self._task.kind is TaskKind.REGRESSION
        with exact_products() if exact else nullcontext():
            logits_NC = self.logits(model, None if exact else autocast)
        return self._world.lead(lambda: self._evaluated(logits_NC))

    def _evaluated(self, logits_NC: NDArray[np.float32] | None) -> Evaluation:
        assert logits_NC is not None, "rank 0 has all answers"
        task = settled(self._task, logits_NC, self._truth)
        return evaluate(logits_NC, self._truth, task)

    def logits(
        self, model: torch.nn.Module, autocast: torch.dtype | None
    ) -> NDArray[np.float32] | None:
        """Return logits [N, C] in rank 0, each row answered by one process; None in the others."""
        order = np.argsort(self._feed.lengths, kind="stable")
        own = share(order, self._world.rank, self._world.size)
        parts = self._world.gather((own, self._answer(model, own, autocast)))
        if parts is None:
            return None
        rows = np.concatenate([rows for rows, _ in parts])
        answers = np.concatenate([logits for _, logits in parts if len(logits)])
        logits_NC = np.empty_like(answers)
        logits_NC[rows] = answers
        return logits_NC

    def _answer(
        self, model: torch.nn.Module, rows: Rows, autocast: torch.dtype | None
    ) -> NDArray[np.float32]:
        device = self._world.device
        was_training = model.training
        model.eval()
        parts = []
        self._progress.begin("evaluate", len(rows), "rows")
        with torch.inference_mode():
            for batch in token_batches(self._feed.lengths, rows, BATCH_TOKENS):
                with torch.autocast(device.type, autocast, enabled=autocast is not None):
                    parts.append(model(**self._feed.inputs(batch)).float().cpu().numpy())
                self._progress.advance(len(batch))
        self._progress.end()
        model.train(was_training)
        return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def settled(task: Task, logits_NC: NDArray[np.float32], truth: NDArray[np.generic]) -> Task:
    """Return the task with what is chosen on dev: the thresholds of a multi-label task."""
    if task.kind is not TaskKind.MULTI_LABEL:
        return task
    return task.model_copy(update={"thresholds": choose_thresholds(logits_NC, truth)})
