"""How well a model tells what is hidden in the texts of dev.

Shapes: M tokens to tell, N pairs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from pipework.progress import Progress
from pipework.run_folder.task import Loss, Metric
from pipework.scoring.evaluation import Evaluation
from pipework.train.data.batches import BATCH_TOKENS, Rows, share, token_batches
from pipework.train.loop.distributed import World
from pipework.train.loop.model_inputs import Inputs
from pipework.train.pretrain.model import Pretrainer
from pipework.train.pretrain.model_inputs import PackedFeed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """Sums over what was asked."""

    loss: float
    right: int
    asked: int


class PretrainJudge:
    """Scores a model on the rows of a split. The same tokens are hidden each time."""

    def __init__(self, feed: PackedFeed, *, world: World, progress: Progress) -> None:
        """Judge on the rows of `feed`."""
        self._feed = feed
        self._world = world
        self._progress = progress

    def evaluate(self, model: torch.nn.Module, autocast: torch.dtype | None) -> Evaluation:
        """Return the same evaluation in every process, which each answers its share of the rows."""
        assert isinstance(model, Pretrainer), "only what pretrains is judged so"
        order = np.argsort(self._feed.lengths, kind="stable")
        rows = share(order, self._world.rank, self._world.size)
        was_training = model.training
        model.eval()
        self._progress.begin("evaluate", len(rows), "rows")
        told: list[tuple[_Told, _Told]] = []
        with torch.inference_mode():
            for batch in token_batches(self._feed.lengths, rows, BATCH_TOKENS):
                told.append(self._answer(model, batch, autocast))
                self._progress.advance(len(batch))
        self._progress.end()
        model.train(was_training)
        masked, order_told = (self._sum([pair[kind] for pair in told]) for kind in (0, 1))
        return _evaluation(len(order), masked, order_told)

    def _answer(
        self, model: Pretrainer, rows: Rows, autocast: torch.dtype | None
    ) -> tuple[_Told, _Told]:
        inputs: Inputs = self._feed.inputs(rows)
        targets_M, swapped_N = inputs.pop("targets"), inputs.pop("swapped")
        device = self._world.device
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            logits_MV, logits_N2 = model.tell(**inputs)
        none = _Told(loss=0.0, right=0, asked=0)
        return _told(logits_MV, targets_M), none if logits_N2 is None else _told(
            logits_N2, swapped_N
        )

    def _sum(self, parts: list[_Told]) -> _Told:
        return _Told(
            loss=self._world.sum(sum(part.loss for part in parts)),
            right=round(self._world.sum(sum(part.right for part in parts))),
            asked=round(self._world.sum(sum(part.asked for part in parts))),
        )


def _told(logits: torch.Tensor, truth: torch.Tensor) -> _Told:
    loss = functional.cross_entropy(logits.float(), truth, reduction="sum")
    right = (logits.argmax(dim=1) == truth).sum()
    return _Told(loss=float(loss), right=int(right), asked=len(truth))


def _evaluation(rows: int, masked: _Told, order: _Told) -> Evaluation:
    scores = {Metric.MASKED_ACCURACY: masked.right / max(1, masked.asked)}
    losses = {Loss.MASKED: masked.loss / max(1, masked.asked)}
    if order.asked:
        scores[Metric.ORDER_ACCURACY] = order.right / order.asked
        losses[Loss.ORDER] = order.loss / order.asked
    return Evaluation(
        rows=rows,
        metric=Metric.MASKED_ACCURACY,
        scores=scores,
        losses=losses,
        classes=(),
        confusion=(),
    )
