"""Fast dropout has the expected rate, mean and reproducibility; attention is unchanged."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from pipework.train.model.fast_dropout import ATTENTION, FastDropout, drop, use_fast_dropout

SMALL = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
)


@pytest.fixture
def pair():
    """A model, and a copy with fast dropout."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(SMALL)
    fast = copy.deepcopy(model)
    use_fast_dropout(fast)
    return model, fast


def inputs():
    ids_BT = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, 5:] = 0
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_dropout_rate_and_the_mean_are_as_expected(kind, p):
    torch.manual_seed(0)
    output = drop(torch.ones(400_001, dtype=kind), p)
    assert float((output == 0).double().mean()) == pytest.approx(p, abs=0.003)
    assert float(output.double().mean()) == pytest.approx(1, abs=0.01)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    dropped = (drop(torch.ones(400_000), 0.3) == 0).double()
    for distance in (1, 2, 3, 4):
        together = (dropped[distance:] * dropped[:-distance]).mean()
        assert float(together) == pytest.approx(0.09, abs=0.003)


def test_rates_0_and_1_drop_nothing_and_everything():
    x = torch.randn(7)
    assert torch.equal(drop(x, 0.0), x)
    assert not drop(x, 1.0).any()


def test_dropout_is_reproducible_from_a_generator_state():
    state = torch.get_rng_state()
    first = drop(torch.ones(100), 0.5)
    assert not torch.equal(drop(torch.ones(100), 0.5), first)
    torch.set_rng_state(state)
    assert torch.equal(drop(torch.ones(100), 0.5), first)


def test_fast_dropout_does_not_change_logits_or_the_saved_model(pair, tmp_path):
    model, fast = pair
    assert any(isinstance(module, FastDropout) for module in fast.modules())
    with torch.inference_mode():
        assert torch.equal(model.eval()(**inputs()).logits, fast.eval()(**inputs()).logits)
    model.save_pretrained(tmp_path / "a")
    fast.save_pretrained(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_gradients_without_dropout_equal_those_of_the_library(pair):
    gradients = []
    for model in pair:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.train()(**inputs()).logits.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert pair[1].config._attn_implementation == ATTENTION  # noqa: SLF001  (no public name)
    for expected, gradient in zip(*gradients, strict=True):
        assert torch.allclose(expected, gradient, atol=1e-6)


def test_attention_dropout_is_applied_only_in_training(pair):
    _, fast = pair
    for module in fast.modules():
        if isinstance(module, FastDropout):
            module.p = 0.0
    for layer in fast.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    fast.train()
    assert not torch.equal(fast(**inputs()).logits, fast(**inputs()).logits)
    fast.eval()
    assert torch.equal(fast(**inputs()).logits, fast(**inputs()).logits)
