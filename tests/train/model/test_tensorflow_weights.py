"""Checkpoints in the layouts of Google's BERT and ALBERT and of albert_zh open as their models."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AlbertModel,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)

from pipework.errors import ConfigError
from pipework.progress import NullProgress
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.model import ModelSettings
from pipework.train.data.tokenizer import SPECIAL_TOKENS, make_tokenizer
from pipework.train.model.classifier import build
from pipework.train.model.encoder_configs import read_config
from pipework.train.model.pretrained import load, no_pooler
from pipework.train.model.tensorflow_weights import find_index, label_count
from pipework.train.pretrain.model import build_pretrain_model
from tests.tensorflow_checkpoints import google_variables, randomise, write_checkpoint
from tests.train.model.test_encoder_configs import BRIGHTMART, GOOGLE, SIZES

WORDS = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(45))]
IDS_1T = torch.tensor([[2, 7, 8, 9, 3, 30, 3]])
TYPES_1T = torch.tensor([[0, 0, 0, 0, 0, 1, 1]])
SLOTS = ("adam_m", "adam_v", "Adam", "Adam_1", "AdamWeightDecayOptimizer", "LAMBOptimizer_1")
TASK = SingleLabelTask(labels=("a", "b", "c"), metric=Metric.ACCURACY)
ALBERT = {key: GOOGLE[key] for key in (*SIZES, "embedding_size")} | {"hidden_act": "gelu_new"}


def write_folder(folder, variables, config, name="bert_model.ckpt"):
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    write_checkpoint(folder / name, variables)
    return str(folder)


def hidden_states(encoder):
    with torch.inference_mode():
        output = encoder.eval()(IDS_1T, token_type_ids=TYPES_1T, output_hidden_states=True)
    return torch.cat(output.hidden_states[1:])


def opened(name, kind=AutoModel):
    config = read_config(name)
    options = no_pooler(config) if kind is AutoModel else {}
    return load(kind, name, config, **options)


def albert_zh():
    """A BERT that computes as albert_zh does, and its variables: one layer, factorised words."""
    config = BertConfig(**(SIZES | {"hidden_act": "gelu_new"}))
    model = randomise(BertModel(config, add_pooling_layer=False))
    model.encoder.layer = nn.ModuleList([model.encoder.layer[0]] * config.num_hidden_layers)
    variables = {f"bert/{name}": values for name, values in google_variables(model).items()}
    shared = {
        name.replace("/layer_0/", "/layer_shared/"): values
        for name, values in variables.items()
        if "/layer_1/" not in name
    }
    words = "bert/embeddings/word_embeddings"
    shared[words] = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    shared[f"{words}_2"] = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    projected_VH = torch.from_numpy(shared[words] @ shared[f"{words}_2"])
    model.embeddings.word_embeddings.weight.data = projected_VH
    return model, shared


def test_googles_bert_has_the_hidden_states_of_the_pytorch_model(tmp_path):
    model = randomise(BertForPreTraining(BertConfig(**SIZES)))
    name = write_folder(tmp_path, google_variables(model), SIZES)
    encoder, loading = opened(name)
    torch.testing.assert_close(hidden_states(encoder), hidden_states(model.bert), atol=1e-5, rtol=0)
    assert not loading["missing_keys"]


@pytest.mark.parametrize("width", [8, 16])
def test_googles_albert_has_the_hidden_states_of_the_pytorch_model(tmp_path, width):
    model = randomise(AlbertForPreTraining(AlbertConfig(**ALBERT | {"embedding_size": width})))
    variables = google_variables(model)
    mapping = "bert/encoder/embedding_hidden_mapping_in"
    if width == SIZES["hidden_size"]:  # Google's code has no mapping between equal widths
        nn.init.eye_(model.albert.encoder.embedding_hidden_mapping_in.weight)
        nn.init.zeros_(model.albert.encoder.embedding_hidden_mapping_in.bias)
        del variables[f"{mapping}/kernel"], variables[f"{mapping}/bias"]
    name = write_folder(tmp_path, variables, GOOGLE | {"embedding_size": width})
    encoder, loading = opened(name)
    expected = hidden_states(model.albert)
    torch.testing.assert_close(hidden_states(encoder), expected, atol=1e-5, rtol=0)
    assert not loading["missing_keys"]


def test_albert_zh_has_the_hidden_states_of_the_pytorch_model(tmp_path):
    model, variables = albert_zh()
    encoder, loading = opened(write_folder(tmp_path, variables, BRIGHTMART))
    assert isinstance(encoder, AlbertModel)
    torch.testing.assert_close(hidden_states(encoder), hidden_states(model), atol=1e-5, rtol=0)
    assert not loading["missing_keys"]


def with_training_state(variables):
    """As a checkpoint of run_classifier.py: with the slots of the optimizer."""
    slots = {f"{name}/{slot}": value for name, value in variables.items() for slot in SLOTS}
    return variables | slots | {"global_step": np.int64(100), "beta1_power": np.float32(0.9)}


def test_a_classifier_of_run_classifier_is_opened_with_its_head(tmp_path):
    model = randomise(BertForSequenceClassification(BertConfig(**SIZES, num_labels=3)))
    variables = with_training_state(google_variables(model))
    name = write_folder(tmp_path, variables, SIZES, "model.ckpt-100")
    assert label_count(find_index(name)) == 3
    settings = ModelSettings(name=name, max_length=16)
    classifier = build(settings, make_tokenizer(settings, None, NullProgress()), TASK)
    with torch.inference_mode():
        logits_1C = classifier.eval()(IDS_1T, torch.ones_like(IDS_1T), TYPES_1T)
        expected_1C = model(IDS_1T, token_type_ids=TYPES_1T).logits
    torch.testing.assert_close(logits_1C, expected_1C, atol=1e-5, rtol=0)
    assert classifier.has_trained_head


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (partial(BertForPreTraining, BertConfig(**SIZES)), SIZES),
        (partial(AlbertForPreTraining, AlbertConfig(**ALBERT)), GOOGLE),
    ],
)
def test_pretraining_continues_with_the_head_of_masked_words(tmp_path, model, config):
    model = randomise(model())
    name = write_folder(tmp_path, google_variables(model), config)
    settings = ModelSettings(name=name, max_length=16)
    pretrain_model = build_pretrain_model(
        settings, make_tokenizer(settings, None, NullProgress()), order=True
    )
    with torch.inference_mode():
        logits_1TV = pretrain_model.eval().model(IDS_1T, token_type_ids=TYPES_1T).logits
        expected_1TV = model(IDS_1T, token_type_ids=TYPES_1T).prediction_logits
    torch.testing.assert_close(logits_1TV, expected_1TV, atol=1e-5, rtol=0)
    pooler = dict(pretrain_model.encoder.pooler.named_parameters())
    for part, weight in model.base_model.pooler.named_parameters():
        torch.testing.assert_close(pooler[part], weight)


def bert_folder(folder, config=SIZES, **variables):
    model = randomise(BertForPreTraining(BertConfig(**SIZES)))
    return write_folder(folder, google_variables(model) | variables, config)


def test_variables_that_match_nothing_are_named(tmp_path):
    values = np.zeros(2, np.float32)
    name = bert_folder(tmp_path, **{"crf/transitions": values, "bert/encoder/gate": values})
    message = r"2 variables without a weight in the model: bert/encoder/gate, crf/transitions$"
    for kind in (AutoModel, AutoModelForSequenceClassification, AutoModelForMaskedLM):
        with pytest.raises(ConfigError, match=message):
            opened(name, kind)


def test_variables_of_more_layers_than_in_the_config_are_named(tmp_path):
    name = bert_folder(tmp_path, SIZES | {"num_hidden_layers": 1})
    message = r"16 variables without a weight .*: bert/encoder/layer_1/attention/.* and 6 more$"
    with pytest.raises(ConfigError, match=message):
        opened(name)


@pytest.mark.parametrize(
    ("size", "missing"),
    [
        ({"num_hidden_layers": 3}, "16 .* bert.encoder.layer.2.attention.output.LayerNorm.bias"),
        ({"intermediate_size": 48}, "6 .* bert.encoder.layer.0.intermediate.dense.bias"),
        ({"vocab_size": 51}, "1 encoder weight missing: bert.embeddings.word_embeddings.w"),
    ],
)
def test_weights_without_a_variable_of_their_shape_are_named(tmp_path, size, missing):
    settings = ModelSettings(name=bert_folder(tmp_path, SIZES | size), max_length=16)
    with pytest.raises(ConfigError, match=missing) as caught:
        build(settings, make_tokenizer(settings, None, NullProgress()), TASK)
    assert caught.value.hint == "check that family and sizes in config.json match the weights"


def test_the_latest_of_several_checkpoints_is_that_of_the_file_checkpoint(tmp_path):
    for step in (100, 900, 1000):
        write_checkpoint(tmp_path / f"model.ckpt-{step}", {})
    state = tmp_path / "checkpoint"
    for path in ("model.ckpt-900", "/other/machine/model.ckpt-900"):
        state.write_text(f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "x"\n')
        assert find_index(str(tmp_path)) == tmp_path / "model.ckpt-900.index"
    state.write_text('model_checkpoint_path: "model.ckpt-2000"\n')
    message = "expected one TensorFlow checkpoint, found model.ckpt-100, model.ckpt-1000, model.c"
    with pytest.raises(ConfigError, match=message):
        find_index(str(tmp_path))


def test_weights_of_pytorch_precede_those_of_tensorflow(tmp_path):
    write_checkpoint(tmp_path / "bert_model.ckpt", {})
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert find_index(str(tmp_path)) is None


def test_a_checkpoint_of_tensorflow_2_is_refused(tmp_path):
    graph = {"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(1, np.float32)}
    with pytest.raises(ConfigError, match=r"is a checkpoint of TensorFlow 2, expected .* 1"):
        opened(bert_folder(tmp_path, **graph))


def test_a_checkpoint_of_another_family_is_refused(tmp_path):
    name = bert_folder(tmp_path, SIZES | {"model_type": "electra"})
    with pytest.raises(ConfigError, match="is a TensorFlow checkpoint of the family electra"):
        opened(name)


def test_a_checkpoint_without_config_or_vocabulary_is_refused_with_a_hint(tmp_path):
    """As in the folder that run_classifier.py writes."""
    settings = ModelSettings(name=bert_folder(tmp_path), max_length=16)
    tokenizer = make_tokenizer(settings, None, NullProgress())
    (tmp_path / "bert_config.json").unlink()
    with pytest.raises(ConfigError, match="cannot be opened: ") as caught:
        build(settings, tokenizer, TASK)
    assert (
        caught.value.hint == "expected a hub id, or a folder with config.json or bert_config.json"
    )
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ConfigError, match="no tokenizer found") as caught:
        make_tokenizer(settings, None, NullProgress())
    assert caught.value.hint == "expected a hub id, or a folder with tokenizer.json or vocab.txt"
