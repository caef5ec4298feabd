"""Tests over all encoder families."""

import numpy as np
import pytest
import torch
from torch import nn

from pipework.benchmarks.studies.tiny_encoders import WIDTH, EncoderFamily, publish
from pipework.errors import ConfigError
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import TargetScale
from pipework.text.padding import Padding
from pipework.train.config.model import Head
from pipework.train.config.train import TrainSettings
from pipework.train.loop.optim import parameter_groups
from pipework.train.model.checkpoint_engine import CheckpointEngine, model_inputs
from pipework.train.model.classifier import open_checkpoint, padding_of, unused_parameters
from pipework.train.model.families import layer_stack, pooled
from tests.repetitions import repeated
from tests.tiny_models import SampleRows, open_tiny, steps_to_fit

# Each family once and each head at least once; the slow tests train them all.
CROSS = list(zip(EncoderFamily, list(Head) * 3, strict=False))
PAIRS = [
    pytest.param(family, head, marks=() if (family, head) in CROSS else pytest.mark.slow)
    for family in EncoderFamily
    for head in Head
]
NO_TYPES = set(EncoderFamily) - {
    *(
        EncoderFamily.BERT,
        EncoderFamily.ALBERT,
        EncoderFamily.ELECTRA,
        EncoderFamily.XLNET,
        EncoderFamily.REMBERT,
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function that returns sample rows and a tiny model of a family."""
    folders = {}

    def make(family, head):
        if family not in folders:
            folder, rows = tmp_path_factory.mktemp(family), SampleRows.of(family)
            publish(family, rows.tokenizer, folder)
            folders[family] = (rows, folder)
        rows, folder = folders[family]
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
    return engine.infer(encodings).values


@pytest.mark.parametrize(
    ("family", "head"),
    [  # each head once; the slow ones have all families
        *repeated(CROSS[: len(Head)], quick=2),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in CROSS[len(Head) :]),
    ],
)
def test_each_family_learns_64_rows(models, family, head):
    rows, model = models(family, head)
    assert steps_to_fit(model, rows) is not None


def test_the_rows_cover_every_topic_and_entities_are_inside_the_text():
    rows = SampleRows.of(EncoderFamily.XLNET)
    assert {example.label for example in rows.examples} == set(rows.task.labels)
    for encoding in rows.encodings(type_ids=True, marked=True):
        (first, middle), (again, last) = encoding.entity_spans
        assert first < middle == again < last < len(encoding)
        assert encoding.type_ids[-1] == 2  # XLNet's own type for its last token


def test_a_model_with_constant_states_does_not_learn(models, monkeypatch):
    rows, model = models(EncoderFamily.BERT, Head.CNN)
    monkeypatch.setattr(
        "pipework.train.model.classifier.Classifier.states",
        lambda self, ids, mask, types=None: mask[..., None].float().repeat(1, 1, WIDTH),  # noqa: ARG005
    )
    assert steps_to_fit(model, rows, steps=30) is None


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_padding_batching_and_saving_do_not_change_the_logits(models, family, head, tmp_path):
    rows, model = models(family, head)
    encodings = encodings_of(rows, model)[:24]
    alone = logits_of(model, encodings, one_by_one=True)
    padding = padding_of(model)
    with torch.inference_mode():
        padded_logits = model.eval()(**model_inputs(encodings, padding, model.device)).numpy()
    np.testing.assert_allclose(padded_logits, alone, atol=1e-5)
    np.testing.assert_allclose(logits_of(model, encodings), alone, atol=1e-5)
    assert np.ptp(alone, axis=0).min() > 1e-3  # logits depend on the texts
    model.save(tmp_path / "checkpoint")
    again = open_checkpoint(tmp_path / "checkpoint")
    assert again.labels == rows.task.labels
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    assert not again.training
    np.testing.assert_allclose(logits_of(again, encodings, one_by_one=True), alone, atol=1e-6)


@pytest.mark.parametrize("family", EncoderFamily)
def test_the_padding_of_each_family(models, family):
    _, model = models(family, Head.LINEAR)
    xlnet = family is EncoderFamily.XLNET
    assert padding_of(model) == Padding(
        pad_id=1 if family is EncoderFamily.MPNET else 0,  # fixed in its code
        type_ids=family not in NO_TYPES,
        pad_type_id=3 if xlnet else 0,
        left=xlnet,
    )


@pytest.mark.parametrize("family", EncoderFamily)
def test_type_ids_are_used_if_they_affect_the_logits(models, family):
    rows, model = models(family, Head.LINEAR)
    batch = batch_of(rows, model, count=1)
    ids = batch["input_ids"]
    types = torch.zeros_like(ids)
    types[:, ids.shape[1] // 2 :] = 1
    inputs = {"input_ids": ids, "attention_mask": batch["attention_mask"]}
    with torch.inference_mode():
        try:
            plain, typed = (
                model.eval()(**inputs, token_type_ids=ids_BT) for ids_BT in (types * 0, types)
            )
            matters = not torch.allclose(plain, typed)
        except (TypeError, IndexError):  # no such argument, or a single type
            matters = False
    assert padding_of(model).type_ids == matters


@pytest.mark.parametrize("family", EncoderFamily)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_norms_and_biases_do_not_decay(models, family, head):
    _, model = models(family, head)
    groups = parameter_groups(model, model.layers(), TrainSettings(weight_decay=0.01))
    decayed = [weight for group in groups if group["weight_decay"] for weight in group["params"]]
    others = [weight for group in groups if not group["weight_decay"] for weight in group["params"]]
    owners = {
        id(weight): module for module in model.modules() for weight in module.parameters(False)
    }
    modules = nn.Linear | nn.Conv1d | nn.Embedding
    by_head = [weight for weight in decayed if not isinstance(owners[id(weight)], modules)]
    assert all(weight.ndim == len("HND") for weight in by_head)
    assert bool(by_head) == (family is EncoderFamily.XLNET)
    assert all(weight.ndim > 1 for weight in decayed)
    free = {id(weight) for weight in others}
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    assert norms
    assert all(id(weight) in free for norm in norms for weight in norm.parameters())
    biases = [weight for name, weight in model.named_parameters() if name.endswith("bias")]
    assert all(id(weight) in free for weight in biases)
    assert len(decayed) + len(others) == len(list(model.parameters()))


@pytest.mark.parametrize("family", EncoderFamily)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.GRU])
def test_each_parameter_is_in_one_depth_group(models, family, head):
    _, model = models(family, head)
    groups = model.layers()
    ids = [id(weight) for group in groups for weight in group]
    assert sorted(ids) == sorted(id(weight) for weight in model.parameters())
    assert len(groups) == (3 if family is EncoderFamily.ALBERT else 4)
    assert all(groups)
    words = model.encoder.get_input_embeddings().weight
    assert any(weight is words for weight in groups[0])
    head_weights = {id(weight) for weight in (model.head or model).parameters()}
    assert {id(weight) for weight in groups[-1]} <= head_weights


@pytest.mark.parametrize("family", EncoderFamily)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_unused_parameters_are_found(models, family, head):
    rows, model = models(family, head)
    names = unused_parameters(model, batch_of(rows, model))
    assert {name.rpartition(".")[2] for name in names} == (
        {"mask_emb"} if family is EncoderFamily.XLNET else set()
    )
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("family", EncoderFamily)
def test_freeze_leaves_only_head_and_pooler_trainable(models, family):
    _, model = models(family, Head.LINEAR)
    model.freeze()
    groups = model.layers()
    assert all(not group for group in groups[:-1])
    assert groups[-1]
    pooler = getattr(model.encoder, "pooler", None)
    assert all(weight.requires_grad for weight in (pooler.parameters() if pooler else ()))


@pytest.mark.parametrize("head", [Head.LINEAR, Head.LSTM, Head.ENTITY])
@pytest.mark.parametrize("family", EncoderFamily)
def test_logits_from_states_equal_those_of_the_model(models, family, head):
    rows, model = models(family, head)
    inputs = batch_of(rows, model, count=8)
    spans = inputs.pop("entity_spans", None)
    with torch.inference_mode():
        direct = model.eval()(**inputs, entity_spans=spans)
        states = model.states(**inputs)
        torch.testing.assert_close(
            model.from_states(states, inputs["attention_mask"], spans), direct, atol=1e-5, rtol=0
        )


def test_training_on_states_updates_head_and_pooler(models):
    rows, model = models(EncoderFamily.ALBERT, Head.LINEAR)
    model.freeze()
    inputs = batch_of(rows, model)
    states = model.states(**inputs).detach()
    model.from_states(states, inputs["attention_mask"]).sum().backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained == {
        *("model.classifier.weight", "model.classifier.bias"),
        *("model.albert.pooler.weight", "model.albert.pooler.bias"),
    }
    assert pooled(model.encoder, states) is not None


@pytest.mark.parametrize("family", EncoderFamily)
def test_gradient_checkpointing_does_not_change_gradients(models, family):
    rows, model = models(family, Head.CNN)
    inputs = batch_of(rows, model)
    if not model.model.supports_gradient_checkpointing:
        with pytest.raises(ConfigError, match=f"{family} has no gradient checkpointing"):
            model.gradient_checkpointing()
        return
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model.train()(**inputs).logsumexp(1).sum().backward()
        gradients.append(model.encoder.get_input_embeddings().weight.grad.clone())
        model.gradient_checkpointing()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("family", EncoderFamily)
def test_layer_decay_is_smallest_at_the_embeddings(models, family):
    _, model = models(family, Head.LINEAR)
    settings = TrainSettings(layer_decay=0.5)
    groups = parameter_groups(model, model.layers(), settings)
    share = {id(weight): group["scale"] for group in groups for weight in group["params"]}
    _, stack = layer_stack(model.encoder)
    depth = len(stack)
    assert depth == (1 if family is EncoderFamily.ALBERT else 2)  # ALBERT shares one layer
    lowest = model.encoder.get_input_embeddings().weight
    assert share[id(lowest)] == min(share.values()) == 0.5 ** (depth + 1)
    for index, layer in enumerate(stack):
        shares = {share[id(weight)] for weight in layer.parameters() if weight.requires_grad}
        assert shares == {0.5 ** (depth - index)}
    inside = {id(weight) for weight in model.encoder.parameters()}
    head = [weight for weight in model.parameters() if id(weight) not in inside]
    assert {share[id(weight)] for weight in head} == {1.0}


@pytest.mark.parametrize(("family", "head"), CROSS)
def test_a_saved_checkpoint_contains_the_scale_of_the_targets(models, family, head, tmp_path):
    rows, model = models(family, head)
    encodings = encodings_of(rows, model)[:4]
    standardised_NC = logits_of(model.eval(), encodings)
    model.target_scale = TargetScale(mean=3000, std=50)
    model.save(tmp_path)
    saved_NC = logits_of(open_checkpoint(tmp_path), encodings)
    np.testing.assert_allclose(saved_NC, 50 * standardised_NC + 3000, rtol=1e-6)
    np.testing.assert_allclose(logits_of(model, encodings), saved_NC, rtol=1e-6)
    model.target_scale = None  # the weights are those of before
    np.testing.assert_array_equal(logits_of(model, encodings), standardised_NC)


@pytest.mark.parametrize(("family", "head"), CROSS)
def test_a_calibration_is_part_of_the_last_layer(models, family, head, tmp_path):
    rows, model = models(family, head)
    encodings = encodings_of(rows, model)[:4]
    scale_C = np.linspace(0.25, 3, model.classes)
    offset_C = np.linspace(-2, 1, model.classes) * model.has_bias
    scale = LogitScale(scale=tuple(scale_C), offset=tuple(offset_C))
    model.save(tmp_path)
    calibrated = open_checkpoint(tmp_path)
    before = Outputs.of(logits_of(calibrated, encodings))
    calibrated.calibrate(scale)
    after_NC = logits_of(calibrated, encodings)
    np.testing.assert_allclose(after_NC, scale.apply(before).values, rtol=1e-5, atol=1e-6)
