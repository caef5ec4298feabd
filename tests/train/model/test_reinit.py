"""Top layers begin anew, in every family."""

import pytest
import torch
from transformers import AutoModel

from pipework.benchmarks.studies.families import Family, tiny
from pipework.errors import ConfigError
from pipework.train.config.run_config import load_config
from pipework.train.model.families import depths, reinitialise, stack_of

SHARES = {Family.ALBERT}


def worn(family):
    """An encoder whose every weight is 7, as if it had learned that."""
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny(family, 50))
    for one in (*model.modules(), *model.parameters()):
        one._is_hf_initialized = True  # noqa: SLF001  (as a loaded checkpoint's are)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    return model


@pytest.mark.parametrize("family", [one for one in Family if one not in SHARES])
def test_the_top_layer_and_the_pooler_are_drawn_anew_and_the_rest_is_left(family):
    model = worn(family)
    reinitialise(model, 1)
    _, stack = stack_of(model)
    anew = list(stack[-1].parameters())
    anew += [] if getattr(model, "pooler", None) is None else list(model.pooler.parameters())
    assert all(not (one == 7.0).any() for one in anew)
    left = {id(one) for one in model.parameters()} - {id(one) for one in anew}
    assert all((one == 7.0).all() for one in model.parameters() if id(one) in left)
    assert left >= {id(one) for group in depths(model)[:-2] for one in group}
    if family is Family.BERT:
        assert float(stack[-1].output.dense.weight.detach().std()) == pytest.approx(0.1, rel=0.2)
        assert bool((stack[-1].output.LayerNorm.weight == 1).all())


def test_shared_layers_and_too_many_are_refused():
    with pytest.raises(ConfigError, match="albert shares its layers over depth"):
        reinitialise(worn(Family.ALBERT), 1)
    with pytest.raises(ConfigError, match="is 3, and the encoder has 2 layers"):
        reinitialise(worn(Family.BERT), 3)


def test_none_changes_nothing():
    model = worn(Family.ALBERT)
    reinitialise(model, 0)
    assert all((one == 7.0).all() for one in model.parameters())


def test_a_preset_has_no_layers_to_forget():
    with pytest.raises(ConfigError, match="a preset's are new"):
        load_config("sample", ["train.reinit_layers=1"])
