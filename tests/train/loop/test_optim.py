import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    XLNetConfig,
    XLNetForSequenceClassification,
)
from transformers import BertForSequenceClassification as Bert

from pipework.train.config.train import OptimizerName, TrainSettings
from pipework.train.loop.optim import make_optimizer, parameter_groups, set_rate

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


def models():
    bert = Bert(BertConfig(**SMALL, intermediate_size=32))
    albert = AlbertForSequenceClassification(AlbertConfig(**SMALL, intermediate_size=32))
    sizes = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "vocab_size": 50}
    xlnet = XLNetForSequenceClassification(XLNetConfig(**sizes))
    lstm = nn.LSTM(4, 3, bidirectional=True)
    return {"bert": bert, "albert": albert, "xlnet": xlnet, "lstm": lstm}


def settings(**changes):
    return TrainSettings(**{"weight_decay": 0.1, "learning_rate": 0.01, **changes})


@pytest.mark.parametrize("family", ["bert", "albert", "xlnet", "lstm"])
def test_norms_and_biases_do_not_decay_and_each_parameter_is_in_one_group(family):
    model = models()[family]
    groups = parameter_groups(model, [list(model.parameters())], settings())
    decayed, others = (group["params"] for group in groups)
    free = {id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm)}
    free |= {id(value) for name, value in model.named_parameters() if "bias" in name}
    assert {id(value) for value in others} == free
    assert len(decayed) + len(others) == len(list(model.parameters()))
    assert all(value.ndim > 1 for value in decayed)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_frozen_parameters_are_in_no_group():
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    (group,) = parameter_groups(model, [list(model.parameters())], settings())
    assert [id(parameter) for parameter in group["params"]] == [id(model.bias)]


def test_layer_decay_scales_the_rate_of_each_layer():
    layers = [nn.Linear(3, 3) for _ in range(3)]
    model = nn.Sequential(*layers)
    groups = parameter_groups(
        model, [list(layer.parameters()) for layer in layers], settings(layer_decay=0.5)
    )
    optimizer = make_optimizer(groups, settings())
    set_rate(optimizer, 0.2)
    rates = {
        id(parameter): group["lr"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for layer, rate in zip(layers, (0.05, 0.1, 0.2), strict=True):
        assert rates[id(layer.weight)] == rates[id(layer.bias)] == pytest.approx(rate)


@pytest.mark.parametrize("eps", [1e-8, 0.1])
def test_a_step_equals_that_of_the_reference_optimizer(eps):
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    reference = torch.optim.AdamW(
        [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias]}],
        lr=0.01,
        weight_decay=0.0,
        eps=eps,
        fused=False,
    )
    groups = parameter_groups(ours, [list(ours.parameters())], settings())
    made = make_optimizer(groups, settings(eps=eps))
    for model, optimizer in ((ours, made), (theirs, reference)):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("name", list(OptimizerName))
def test_each_optimizer_fits_a_line_and_its_state_can_be_restored(name, on_cpu):
    def fit(steps, model, optimizer):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
        return float(((model(x) - y) ** 2).mean().detach())

    def fresh():
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        chosen = settings(
            optimizer=name, weight_decay=0.0, learning_rate=0.05, optimizer_on_cpu=on_cpu
        )
        groups = parameter_groups(model, [list(model.parameters())], chosen)
        return model, make_optimizer(groups, chosen)

    torch.manual_seed(1)
    x = torch.randn(50, 2)
    y = x @ torch.tensor([[2.0], [-1.0]]) + 0.5
    model, optimizer = fresh()
    assert fit(150, model, optimizer) < 0.05 * float((y**2).mean())

    whole, through = fresh()
    fit(20, whole, through)
    first, before = fresh()
    fit(12, first, before)
    second, after = fresh()
    second.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    fit(8, second, after)
    assert torch.equal(second.weight, whole.weight)
