import numpy as np
import torch
from torch.nn import functional

from pipework.tasks.labels import NO_LABEL
from pipework.train.loop.losses import label_losses
from pipework.train.objectives import Objective


def of_tokens(logits_TC, truth_T, smoothing, weights_C):
    del smoothing, weights_C
    return functional.cross_entropy(logits_TC, truth_T, ignore_index=NO_LABEL, reduction="none")


def test_each_labelled_token_has_the_same_weight():
    truth = np.array([[-1, 0, 1, 1], [-1, 1, -1, -1], [-1, -1, -1, -1]], np.int32)
    lengths = np.array([3, 4, 2])  # the first row is truncated
    losses = label_losses(
        Objective(of_labels=of_tokens, of_teachers=None), truth, lengths_N=lengths
    )
    logits_TC = torch.randn(2 + 3, 2, generator=torch.Generator().manual_seed(0))
    without, first = losses(logits_TC, np.array([2, 0]))
    # Three labelled tokens in three rows: one each.
    expected = functional.cross_entropy(logits_TC[3:], torch.tensor([0, 1]), reduction="sum")
    torch.testing.assert_close(first, expected)
    assert without == 0
