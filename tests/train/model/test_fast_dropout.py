"""Quick dropout is dropout: the share, the mean, the seed; and attention is attention."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from pipework.train.model.fast_dropout import ATTENTION, QuickDropout, drop, quicken

SMALL = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
)


@pytest.fixture
def pair():
    """A model, and a quick copy of it."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(SMALL)
    quick = copy.deepcopy(model)
    quicken(quick)
    return model, quick


def inputs():
    ids_BT = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, 5:] = 0
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_wanted_share_is_dropped_and_the_mean_stays(kind, p):
    torch.manual_seed(0)
    found = drop(torch.ones(400_001, dtype=kind), p)
    assert float((found == 0).double().mean()) == pytest.approx(p, abs=0.003)
    assert float(found.double().mean()) == pytest.approx(1, abs=0.01)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    dropped = (drop(torch.ones(400_000), 0.3) == 0).double()
    for distance in (1, 2, 3, 4):
        together = (dropped[distance:] * dropped[:-distance]).mean()
        assert float(together) == pytest.approx(0.09, abs=0.003)


def test_the_ends_are_nothing_and_all():
    x = torch.randn(7)
    assert torch.equal(drop(x, 0.0), x)
    assert not drop(x, 1.0).any()


def test_a_generator_state_repeats_it():
    state = torch.get_rng_state()
    first = drop(torch.ones(100), 0.5)
    assert not torch.equal(drop(torch.ones(100), 0.5), first)
    torch.set_rng_state(state)
    assert torch.equal(drop(torch.ones(100), 0.5), first)


def test_a_quick_model_answers_and_is_saved_as_before(pair, tmp_path):
    model, quick = pair
    assert any(isinstance(module, QuickDropout) for module in quick.modules())
    with torch.inference_mode():
        assert torch.equal(model.eval()(**inputs()).logits, quick.eval()(**inputs()).logits)
    model.save_pretrained(tmp_path / "a")
    quick.save_pretrained(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_with_nothing_dropped_it_trains_as_the_library_does(pair):
    gradients = []
    for model in pair:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.train()(**inputs()).logits.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert pair[1].config._attn_implementation == ATTENTION  # noqa: SLF001  (it has no other name)
    for expected, found in zip(*gradients, strict=True):
        assert torch.allclose(expected, found, atol=1e-6)


def test_attention_weights_are_dropped_while_training_only(pair):
    _, quick = pair
    for module in quick.modules():
        if isinstance(module, QuickDropout):
            module.p = 0.0
    for layer in quick.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    quick.train()
    assert not torch.equal(quick(**inputs()).logits, quick(**inputs()).logits)
    quick.eval()
    assert torch.equal(quick(**inputs()).logits, quick(**inputs()).logits)
