"""Evaluation of a pretraining model on dev.

Shapes: M masked tokens, N pairs.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from pipework.progress import Progress
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Loss, Metric, Score
from pipework.train.data.batches import Rows
from pipework.train.loop.distributed import World
from pipework.train.loop.evaluator import compute_batches
from pipework.train.loop.model_inputs import Inputs
from pipework.train.pretrain.model import PretrainModel
from pipework.train.pretrain.model_inputs import PackedLoader


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sums:
    """Sums over the predictions of an objective."""

    loss: float
    correct: int
    count: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainEvaluator:
    """Evaluates a pretraining model on a split, with the same masked tokens each time."""

    loader: PackedLoader
    world: World
    progress: Progress

    def evaluate(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Evaluation:
        """Return the same evaluation in every process; each computes its share of the rows."""
        assert isinstance(model, PretrainModel), "expected a pretraining model"
        compute = partial(self._compute, model, autocast)
        batches = compute_batches(model, self.loader, compute, self.world, self.progress)
        masked, order = (self._sum([sums[kind] for _, sums in batches]) for kind in (0, 1))
        return _evaluation(len(self.loader.lengths), masked, order)

    def _compute(
        self, model: PretrainModel, autocast: torch.dtype | None, rows: Rows
    ) -> tuple[_Sums, _Sums]:
        inputs: Inputs = self.loader.inputs(rows)
        targets_M, swapped_N = inputs.pop("targets"), inputs.pop("swapped")
        device = self.world.device
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            logits_MV, logits_N2 = model.predict(**inputs)
        order = _Sums(loss=0.0, correct=0, count=0)
        if logits_N2 is not None:
            order = _sums(logits_N2, swapped_N)
        return _sums(logits_MV, targets_M), order

    def _sum(self, parts: list[_Sums]) -> _Sums:
        return _Sums(
            loss=self.world.sum(sum(part.loss for part in parts)),
            correct=round(self.world.sum(sum(part.correct for part in parts))),
            count=round(self.world.sum(sum(part.count for part in parts))),
        )


def _sums(logits: torch.Tensor, truth: torch.Tensor) -> _Sums:
    loss = functional.cross_entropy(logits.float(), truth, reduction="sum")
    correct = (logits.argmax(dim=1) == truth).sum()
    return _Sums(loss=float(loss), correct=int(correct), count=len(truth))


def _evaluation(rows: int, masked: _Sums, order: _Sums) -> Evaluation:
    scores: dict[Score, float] = {Metric.MASKED_ACCURACY: masked.correct / max(1, masked.count)}
    losses = {Loss.MASKED: masked.loss / max(1, masked.count)}
    if order.count:
        scores[Metric.ORDER_ACCURACY] = order.correct / order.count
        losses[Loss.ORDER] = order.loss / order.count
    return Evaluation(rows=rows, metric=Metric.MASKED_ACCURACY, scores=scores, losses=losses)
