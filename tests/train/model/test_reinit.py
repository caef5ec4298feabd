"""Re-initialization of the top layers, in every family."""

import pytest
import torch
from transformers import AutoModel

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, tiny
from pipework.errors import ConfigError
from pipework.train.model.families import layer_stack, parameters_by_depth, reinitialise

SHARES = {EncoderFamily.ALBERT}


def pretrained_encoder(family):
    """An encoder with all weights set to 7, as if pretrained."""
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny(family, 50))
    for member in (*model.modules(), *model.parameters()):
        member._is_hf_initialized = True  # noqa: SLF001  (as in a loaded checkpoint)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    return model


@pytest.mark.parametrize("family", [weight for weight in EncoderFamily if weight not in SHARES])
def test_only_the_top_layer_and_the_pooler_are_reinitialised(family):
    model = pretrained_encoder(family)
    reinitialise(model, 1)
    _, stack = layer_stack(model)
    reinitialised = list(stack[-1].parameters())
    reinitialised += (
        [] if getattr(model, "pooler", None) is None else list(model.pooler.parameters())
    )
    assert all(not (weight == 7.0).any() for weight in reinitialised)
    unchanged = {id(weight) for weight in model.parameters()} - {
        id(weight) for weight in reinitialised
    }
    assert all((weight == 7.0).all() for weight in model.parameters() if id(weight) in unchanged)
    assert unchanged >= {
        id(weight) for group in parameters_by_depth(model)[:-2] for weight in group
    }
    if family is EncoderFamily.BERT:
        assert float(stack[-1].output.dense.weight.detach().std()) == pytest.approx(0.1, rel=0.2)
        assert bool((stack[-1].output.LayerNorm.weight == 1).all())


def test_shared_layers_and_too_many_layers_are_refused():
    with pytest.raises(ConfigError, match="albert shares its layers over depth"):
        reinitialise(pretrained_encoder(EncoderFamily.ALBERT), 1)
    with pytest.raises(ConfigError, match="is 3, but the encoder has 2 layers"):
        reinitialise(pretrained_encoder(EncoderFamily.BERT), 3)


def test_zero_layers_change_nothing():
    model = pretrained_encoder(EncoderFamily.ALBERT)
    reinitialise(model, 0)
    assert all((weight == 7.0).all() for weight in model.parameters())
