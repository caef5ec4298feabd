import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForSequenceClassification, BertConfig
from transformers import BertForSequenceClassification as Bert

from train.optim import adamw, linear_schedule, parameter_groups

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


def models():
    bert = Bert(BertConfig(**SMALL, intermediate_size=32))
    albert = AlbertForSequenceClassification(AlbertConfig(**SMALL, intermediate_size=32))
    return {"bert": bert, "albert": albert}


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_norms_and_biases_do_not_decay_and_every_parameter_is_listed_once(family):
    model = models()[family]
    decayed, others = (group["params"] for group in parameter_groups(model, 0.01))
    free = {id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm)}
    free |= {id(value) for name, value in model.named_parameters() if name.endswith("bias")}
    assert {id(value) for value in others} == free
    assert len(decayed) + len(others) == len(list(model.parameters()))
    assert all(value.ndim > 1 for value in decayed)


def test_the_rate_rises_then_falls_to_zero():
    optimizer = adamw(nn.Linear(2, 2), learning_rate=1.0, weight_decay=0.0)
    schedule = linear_schedule(optimizer, steps=10, warmup=0.2)
    rates = []
    for _ in range(10):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1])
    assert rates[3:] == pytest.approx([7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert schedule.get_last_lr() == [0, 0]


def test_the_step_is_that_of_the_reference_optimizer():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    reference = torch.optim.AdamW(
        [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias]}],
        lr=0.01,
        weight_decay=0.0,
        fused=False,
    )
    for model, optimizer in ((ours, adamw(ours, 0.01, 0.1)), (theirs, reference)):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)
