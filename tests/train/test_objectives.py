import numpy as np
import pytest
import torch
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.tokens import TokenTask
from pipework.train.objectives import OBJECTIVES, class_weights

SINGLE = SingleLabelTask(labels=("a", "b", "c"), metric=Metric.ACCURACY)
TOKENS = TokenTask(labels=("O", "B-X", "I-X"), metric=Metric.MICRO_F1)
MULTI = MultiLabelTask(labels=("a", "b", "c"), metric=Metric.MICRO_F1)
single_losses = OBJECTIVES[SingleLabelTask].of_labels
multi_losses = OBJECTIVES[MultiLabelTask].of_labels


def test_the_mean_over_rows_is_the_usual_loss():
    torch.manual_seed(0)
    logits_BC, truth_B = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    single = single_losses(logits_BC, truth_B, 0.1, None)
    expected = functional.cross_entropy(logits_BC, truth_B, label_smoothing=0.1)
    torch.testing.assert_close(single.mean(), expected)
    hot_BC = functional.one_hot(truth_B, 3).float()
    multi = multi_losses(logits_BC, hot_BC, 0.0, None)
    expected = functional.binary_cross_entropy_with_logits(logits_BC, hot_BC)
    torch.testing.assert_close(multi.mean(), expected)
    values_B = torch.randn(5)
    squared = OBJECTIVES[RegressionTask].of_labels(logits_BC[:, :1], values_B, 0.0, None)
    torch.testing.assert_close(squared.mean(), functional.mse_loss(logits_BC[:, 0], values_B))


def test_tokens_without_a_tag_have_no_loss():
    torch.manual_seed(0)
    logits_RC, truth_R = torch.randn(5, 5), torch.tensor([-1, 0, -2, 3, 4])
    losses_R = OBJECTIVES[TokenTask].of_labels(logits_RC, truth_R, 0.0, None)
    labelled = truth_R >= 0
    expected = functional.cross_entropy(logits_RC, truth_R.clamp(min=0), reduction="none")
    torch.testing.assert_close(losses_R, expected * labelled)


def test_the_weights_of_tags_count_tokens():
    truth_NW = np.array([[-1, 0, 0, 1, -1, 9], [-1, 0, 2, -2, -1, 0]], np.int16)
    weights_C = class_weights("balanced", truth_NW, TOKENS)
    parts = weights_C * torch.tensor([3, 1, 1])
    torch.testing.assert_close(parts, torch.full((3,), 5 / 3))


def test_half_precision_logits_give_a_loss_in_float32():
    logits_BC = torch.randn(2, 3).half()
    assert single_losses(logits_BC, torch.tensor([0, 1]), 0.0, None).dtype == torch.float32


def test_balanced_weights_give_each_class_the_same_share_of_the_loss():
    truth_N = np.array([0] * 6 + [1] * 3 + [2], np.int32)
    weights_C = class_weights("balanced", truth_N, SINGLE)
    parts = weights_C * torch.tensor([6, 3, 1])
    torch.testing.assert_close(parts, torch.full((3,), 10 / 3))
    losses_B = single_losses(torch.zeros(3, 3), torch.tensor([0, 1, 2]), 0.0, weights_C)
    torch.testing.assert_close(losses_B, np.log(3) * weights_C)


def test_custom_weights_keep_their_ratio_and_are_scaled_to_mean_1():
    truth_N = np.array([0, 0, 1, 2], np.int32)
    weights_C = class_weights((1.0, 2.0, 4.0), truth_N, SINGLE)
    assert (weights_C / weights_C[0]).tolist() == [1, 2, 4]
    assert float(weights_C[truth_N].mean()) == pytest.approx(1)


def test_multi_label_weights_apply_to_rows_with_the_label():
    truth_NC = np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0]], np.int8)
    weights_C = class_weights("balanced", truth_NC, MULTI)
    assert weights_C.tolist() == pytest.approx([1 / 3, 3, 1])  # a label without rows has weight 1
    truth_BC = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    has, lacks = multi_losses(torch.zeros(2, 3), truth_BC, 0.0, torch.tensor([1.0, 5.0, 1.0]))
    assert float(has / lacks) == pytest.approx((1 + 5 + 1) / 3)


def test_a_class_without_rows_does_not_change_the_others():
    weights_C = class_weights("balanced", np.array([0, 0, 1, 1], np.int32), SINGLE)
    assert weights_C[:2].tolist() == pytest.approx([1, 1])


def test_a_wrong_number_of_weights_is_refused():
    with pytest.raises(ConfigError, match="found 2 weights for 3 labels"):
        class_weights((1.0, 2.0), np.array([0, 1], np.int32), SINGLE)
    assert class_weights("equal", np.array([0, 1], np.int32), SINGLE) is None
