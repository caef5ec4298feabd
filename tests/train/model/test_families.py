"""What holds for every family: one test each, over all of them."""

import numpy as np
import pytest
import torch
from torch import nn

from pipework.benchmarks.studies.families import Family, Rows, open_tiny, publish, steps_to_fit
from pipework.benchmarks.studies.readme import RESULTS, read_all
from pipework.benchmarks.studies.training_results import FamiliesResult
from pipework.errors import ConfigError
from pipework.text.padding import Padding
from pipework.train.config.model import Head
from pipework.train.config.train import TrainSettings
from pipework.train.loop.optim import parameter_groups
from pipework.train.model.checkpoint_engine import CheckpointEngine, model_inputs
from pipework.train.model.classifier import open_checkpoint, padding_of, unreached
from pipework.train.model.families import pooled, stack_of

# Each family once and each head once at least; `pipework.benchmarks.studies.families` trains them all.
CROSS = list(zip(Family, list(Head) * 3, strict=False))
NO_TYPES = set(Family) - {
    *(Family.BERT, Family.ALBERT, Family.ELECTRA, Family.XLNET, Family.REMBERT),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Published folders and rows by family, made when asked for."""
    kept = {}

    def make(family, head):
        if family not in kept:
            folder, rows = tmp_path_factory.mktemp(family), Rows.of(family)
            publish(family, rows.tokenizer, folder)
            kept[family] = (rows, folder)
        rows, folder = kept[family]
        return rows, open_tiny(rows, folder, head)

    return make


def encodings_of(rows, model):
    marked = model.settings.head is Head.ENTITY
    return rows.encodings(type_ids=padding_of(model).type_ids, marked=marked)


def batch_of(rows, model, count=4):
    encodings = encodings_of(rows, model)[:count]
    return model_inputs(encodings, padding_of(model), model.device)


def logits_of(model, encodings, *, one_by_one=False):
    engine = CheckpointEngine(model, padding=padding_of(model), one_by_one=one_by_one)
    return engine.infer(encodings)


@pytest.mark.parametrize(("family", "head"), CROSS)
def test_it_learns_64_rows(made, family, head):
    rows, model = made(family, head)
    assert steps_to_fit(model, rows) is not None


def test_the_stored_table_has_every_family_with_every_head_and_all_have_learned():
    (stored,) = (one for one in read_all(RESULTS) if isinstance(one, FamiliesResult))
    found = {(fit.family, fit.head) for fit in stored.fits if fit.steps is not None}
    assert found == {(family, head) for family in Family for head in Head}
    assert stored.rows == 64


@pytest.mark.parametrize("head", Head)
@pytest.mark.parametrize("family", Family)
def test_padding_and_batch_mates_change_no_answer_and_a_saved_model_answers_the_same(
    made, family, head, tmp_path
):
    rows, model = made(family, head)
    encodings = encodings_of(rows, model)[:24]
    alone = logits_of(model, encodings, one_by_one=True)
    padding = padding_of(model)
    with torch.inference_mode():
        as_they_come = model.eval()(**model_inputs(encodings, padding, model.device)).numpy()
    np.testing.assert_allclose(as_they_come, alone, atol=1e-5)
    np.testing.assert_allclose(logits_of(model, encodings), alone, atol=1e-5)
    assert np.ptp(alone, axis=0).min() > 1e-3  # the texts do matter
    model.save(tmp_path / "checkpoint")
    again = open_checkpoint(tmp_path / "checkpoint")
    assert again.labels == rows.task.labels
    assert {one.dtype for one in again.parameters()} == {torch.float32}
    assert not again.training
    np.testing.assert_allclose(logits_of(again, encodings, one_by_one=True), alone, atol=1e-6)


@pytest.mark.parametrize("family", Family)
def test_how_a_family_fills_up_a_batch(made, family):
    _, model = made(family, Head.LINEAR)
    xlnet = family is Family.XLNET
    assert padding_of(model) == Padding(
        pad_id=1 if family is Family.MPNET else 0,  # fixed in its code
        type_ids=family not in NO_TYPES,
        pad_type_id=3 if xlnet else 0,
        left=xlnet,
    )


@pytest.mark.parametrize("family", Family)
def test_type_ids_are_used_exactly_where_they_matter(made, family):
    rows, model = made(family, Head.LINEAR)
    one = batch_of(rows, model, count=1)
    ids = one["input_ids"]
    types = torch.zeros_like(ids)
    types[:, ids.shape[1] // 2 :] = 1
    given = {"input_ids": ids, "attention_mask": one["attention_mask"]}
    with torch.inference_mode():
        try:
            plain, typed = (
                model.eval()(**given, token_type_ids=ids_BT) for ids_BT in (types * 0, types)
            )
            matters = not torch.allclose(plain, typed)
        except (TypeError, IndexError):  # no such argument, or one type only
            matters = False
    assert padding_of(model).type_ids == matters


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_norms_and_biases_do_not_decay(made, family, head):
    _, model = made(family, head)
    groups = parameter_groups(model, model.layers(), TrainSettings(weight_decay=0.01))
    decayed = [one for group in groups if group["weight_decay"] for one in group["params"]]
    others = [one for group in groups if not group["weight_decay"] for one in group["params"]]
    owners = {id(one): module for module in model.modules() for one in module.parameters(False)}
    modules = nn.Linear | nn.Conv1d | nn.Embedding
    by_head = [one for one in decayed if not isinstance(owners[id(one)], modules)]
    assert all(one.ndim == len("HND") for one in by_head)
    assert bool(by_head) == (family is Family.XLNET)
    assert all(one.ndim > 1 for one in decayed)
    free = {id(one) for one in others}
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    assert norms
    assert all(id(one) in free for norm in norms for one in norm.parameters())
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    assert all(id(one) in free for one in biases)
    assert len(decayed) + len(others) == len(list(model.parameters()))


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.GRU])
def test_the_groups_by_depth_hold_every_parameter_once(made, family, head):
    _, model = made(family, head)
    groups = model.layers()
    ids = [id(one) for group in groups for one in group]
    assert sorted(ids) == sorted(id(one) for one in model.parameters())
    assert len(groups) == (3 if family is Family.ALBERT else 4)
    assert all(groups)
    words = model.encoder.get_input_embeddings().weight
    assert any(one is words for one in groups[0])
    head_weights = {id(one) for one in (model.head or model).parameters()}
    assert {id(one) for one in groups[-1]} <= head_weights


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_what_no_loss_reaches_is_named(made, family, head):
    rows, model = made(family, head)
    names = unreached(model, batch_of(rows, model))
    assert {name.rpartition(".")[2] for name in names} == (
        {"mask_emb"} if family is Family.XLNET else set()
    )
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize("family", Family)
def test_a_frozen_encoder_gives_the_same_states_whatever_the_head_learns(made, family):
    _, model = made(family, Head.LINEAR)
    model.freeze()
    groups = model.layers()
    assert all(not group for group in groups[:-1])
    assert groups[-1]
    pooler = getattr(model.encoder, "pooler", None)
    assert all(one.requires_grad for one in (pooler.parameters() if pooler else ()))


@pytest.mark.parametrize("head", [Head.LINEAR, Head.LSTM, Head.ENTITY])
@pytest.mark.parametrize("family", Family)
def test_the_logits_that_follow_from_the_states_are_the_direct_ones(made, family, head):
    rows, model = made(family, head)
    inputs = batch_of(rows, model, count=8)
    spans = inputs.pop("entity_spans", None)
    with torch.inference_mode():
        direct = model.eval()(**inputs, entity_spans=spans)
        states = model.states(**inputs)
        torch.testing.assert_close(
            model.from_states(states, inputs["attention_mask"], spans), direct, atol=1e-5, rtol=0
        )


def test_a_head_on_given_states_learns_with_the_weights_of_the_model(made):
    rows, model = made(Family.ALBERT, Head.LINEAR)
    model.freeze()
    inputs = batch_of(rows, model)
    states = model.states(**inputs).detach()
    model.from_states(states, inputs["attention_mask"]).sum().backward()
    trained = {name for name, one in model.named_parameters() if one.grad is not None}
    assert trained == {
        *("model.classifier.weight", "model.classifier.bias"),
        *("model.albert.pooler.weight", "model.albert.pooler.bias"),
    }
    assert pooled(model.encoder, states) is not None


@pytest.mark.parametrize("family", Family)
def test_gradient_checkpointing_changes_no_gradient_where_there_is_any(made, family):
    rows, model = made(family, Head.CNN)
    inputs = batch_of(rows, model)
    if not model.model.supports_gradient_checkpointing:
        with pytest.raises(ConfigError, match=f"{family} has no gradient checkpointing"):
            model.gradient_checkpointing()
        return
    found = []
    for _ in range(2):
        model.zero_grad()
        model.train()(**inputs).logsumexp(1).sum().backward()
        found.append(model.encoder.get_input_embeddings().weight.grad.clone())
        model.gradient_checkpointing()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("family", Family)
def test_the_embeddings_learn_slowest_and_the_head_at_the_full_rate(made, family):
    _, model = made(family, Head.LINEAR)
    settings = TrainSettings(layer_decay=0.5)
    groups = parameter_groups(model, model.layers(), settings)
    share = {id(one): group["scale"] for group in groups for one in group["params"]}
    _, stack = stack_of(model.encoder)
    depth = len(stack)
    assert depth == (1 if family is Family.ALBERT else 2)  # ALBERT's is used at every depth
    lowest = model.encoder.get_input_embeddings().weight
    assert share[id(lowest)] == min(share.values()) == 0.5 ** (depth + 1)
    for place, layer in enumerate(stack):
        shares = {share[id(one)] for one in layer.parameters() if one.requires_grad}
        assert shares == {0.5 ** (depth - place)}
    inside = {id(one) for one in model.encoder.parameters()}
    head = [one for one in model.parameters() if id(one) not in inside]
    assert {share[id(one)] for one in head} == {1.0}
