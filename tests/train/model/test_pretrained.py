"""Old checkpoint folders open, and unsuitable checkpoints are refused before the first step."""

import json
import shutil
from functools import partial

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, BertModel, PreTrainedTokenizerFast
from transformers.models.bert.modeling_bert import BertEncoder

from pipework.errors import ConfigError
from pipework.progress import NullProgress
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import TargetScale
from pipework.train.config.model import Head, ModelSettings
from pipework.train.data.tokenizer import SPECIAL_TOKENS, check_unknown_rate, make_tokenizer
from pipework.train.model.classifier import build
from pipework.train.model.pretrained import LabelNames, open_pretrained
from pipework.train.pretrain.model import build_pretrain_model

WORDS = [*SPECIAL_TOKENS, "hello", "world", "Hello", "é", "e", *(f"w{n}" for n in range(30))]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
}
TASK = SingleLabelTask(labels=("no", "yes"), metric=Metric.ACCURACY)
SOURCE = None  # the tokenizer of a checkpoint needs no texts


def old_folder(tmp_path, model, *, rename=str, config="bert_config.json"):
    """Write a folder in the format before safetensors and tokenizer.json."""
    (tmp_path / config).write_text(json.dumps(SIZES))
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    weights = {rename(name): tensor for name, tensor in model.state_dict().items()}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    return ModelSettings(name=str(tmp_path), max_length=16, lowercase=False)


def open_classifier(settings, task=TASK):
    return build(settings, make_tokenizer(settings, SOURCE, NullProgress()), task)


def gamma(name):
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("rename", [str, gamma])
@pytest.mark.parametrize("config", ["bert_config.json", "config.json"])
def test_an_old_folder_opens_with_all_its_weights(tmp_path, head, prefix, rename, config):
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**SIZES))
    for norm in (weight for name, weight in model.named_parameters() if "LayerNorm" in name):
        torch.nn.init.uniform_(norm)
    settings = old_folder(
        tmp_path, model if prefix else model.bert, rename=rename, config=config
    ).model_copy(update={"head": head})
    result = open_classifier(settings)
    expected = model.bert.state_dict()
    for name, tensor in result.encoder.state_dict().items():
        torch.testing.assert_close(tensor, expected[name])
    assert result.labels == ("no", "yes")


@pytest.mark.parametrize(
    ("tokenizer_config", "lowercase", "pieces"),
    [
        (None, False, ["Hello", "[UNK]"]),
        (None, True, ["hello", "e"]),
        (None, None, ["Hello", "[UNK]"]),
        ({"do_lower_case": True}, None, ["hello", "e"]),
        ({"do_lower_case": True}, False, ["hello", "e"]),
        ({"do_lower_case": False}, True, ["Hello", "[UNK]"]),
        ({"do_lower_case": True, "strip_accents": False}, False, ["hello", "é"]),
        ({"model_max_length": 20}, True, ["hello", "e"]),
    ],
)
def test_the_casing_of_the_folder_precedes_the_settings(
    tmp_path, tokenizer_config, lowercase, pieces
):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    settings = settings.model_copy(update={"lowercase": lowercase})
    if tokenizer_config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    result = make_tokenizer(settings, SOURCE, NullProgress()).encode("Hello É").tokens
    assert result == ["[CLS]", *pieces, "[SEP]"]


def test_missing_encoder_weights_are_refused_for_every_head(tmp_path):
    model = BertModel(BertConfig(**SIZES))
    settings = old_folder(tmp_path, model, rename=lambda name: name.replace("layer.1", "layer.9"))
    for head, prefix in ((Head.LINEAR, r"bert\."), (Head.GRU, "")):
        with pytest.raises(ConfigError, match=rf"16 encoder weights missing: {prefix}enc"):
            open_classifier(settings.model_copy(update={"head": head}))


@pytest.mark.parametrize("size", [len(WORDS) + 1, len(WORDS) // 2])
def test_a_vocabulary_of_another_size_is_refused(tmp_path, size):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{word}\n" for word in [*WORDS, "more"][:size]))
    with pytest.raises(ConfigError, match=rf"has {size} ids, the embedding has {len(WORDS)} rows"):
        open_classifier(settings.model_copy(update={"vocab": other}))


def test_a_vocabulary_file_may_replace_that_of_the_checkpoint(tmp_path):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    (tmp_path / "vocab.txt").rename(tmp_path / "other.txt")
    open_classifier(settings.model_copy(update={"vocab": tmp_path / "other.txt"}))


def test_a_length_above_the_positions_is_refused_for_every_head(tmp_path):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    for head in (Head.LINEAR, Head.CNN):
        with pytest.raises(ConfigError, match=r"model\.max_length 21: .* has 20 positions"):
            open_classifier(settings.model_copy(update={"head": head, "max_length": 21}))


@pytest.mark.parametrize(
    "open_model", [build, lambda *parts: build_pretrain_model(*parts[:2], order=False)]
)
def test_too_little_memory_is_not_a_length_above_the_positions(tmp_path, monkeypatch, open_model):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    tokenizer = make_tokenizer(settings, SOURCE, NullProgress())
    monkeypatch.setattr(BertEncoder, "forward", lambda *_, **__: torch.empty(1 << 60))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        open_model(settings, tokenizer, TASK)


def test_tokenizer_json_precedes_vocab_txt(tmp_path):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    cased = make_tokenizer(settings, SOURCE, NullProgress())
    PreTrainedTokenizerFast(tokenizer_object=cased, pad_token="[PAD]").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("not\nthis\n")
    assert make_tokenizer(settings, SOURCE, NullProgress()).encode("Hello").tokens[1] == "Hello"


def test_too_many_unknown_tokens_are_refused_with_the_name_of_the_vocabulary():
    check_unknown_rate(0.2, "vocab.txt")
    with pytest.raises(
        ConfigError, match=r"21% of the train tokens .* the vocabulary of vocab\.txt"
    ):
        check_unknown_rate(0.21, "vocab.txt")


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (TASK, "single_label_classification"),
        (MultiLabelTask(labels=TASK.labels, metric=Metric.MICRO_F1), "multi_label_classification"),
        (
            RegressionTask(labels=("score",), metric=Metric.PEARSON),
            "regression",
        ),
    ],
)
@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_labels_and_problem_type_are_stored_in_the_checkpoint(tmp_path, task, problem, head):
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    result = open_classifier(settings.model_copy(update={"head": head}), task)
    assert result.labels == task.labels
    assert result.classes == len(task.labels)
    result.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["problem_type"] == problem


def test_a_regression_that_is_trained_further_starts_with_the_values_of_its_checkpoint(tmp_path):
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    settings = old_folder(tmp_path, BertModel(BertConfig(**SIZES)))
    first = open_classifier(settings, task)
    first.standardise(TargetScale(mean=300, std=5))
    ids = torch.tensor([[1, 4, 5]])
    with torch.inference_mode():
        expected = first.eval()(ids, torch.ones_like(ids)).item()
        first.save(tmp_path / "saved")
        shutil.copyfile(tmp_path / "vocab.txt", tmp_path / "saved" / "vocab.txt")
        second = open_classifier(
            settings.model_copy(update={"name": str(tmp_path / "saved")}), task
        )
        second.standardise(TargetScale(mean=400, std=20))
        assert second.eval()(ids, torch.ones_like(ids)).item() == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(300, abs=10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./none", "checkpoint './none' is not a folder"),
        ("/none/bert", "checkpoint '/none/bert' is not a folder"),
        ("https://a.org/model", "checkpoint 'https://a.org/model' is not a folder"),
        ("a b", "checkpoint 'a b' is neither a folder nor a hub id"),
        ("bert-none", r"cannot download checkpoint 'bert-none' from http://127.0.0.1:9: "),
    ],
)
def test_a_name_that_cannot_be_opened_is_refused_at_once(monkeypatch, name, message):
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    for function in (
        open_classifier,
        partial(make_tokenizer, source=SOURCE, progress=NullProgress()),
    ):
        with pytest.raises(ConfigError, match=message):
            function(ModelSettings(name=name))


def test_weights_of_keras_are_refused(tmp_path):
    (tmp_path / "tf_model.h5").write_bytes(b"\x89HDF")
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS))
    settings = ModelSettings(name=str(tmp_path))
    message = (
        r"has only weights of Keras \(tf_model.h5\), expected those of PyTorch or of TensorFlow 1"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        make_tokenizer(settings, SOURCE, NullProgress())
    assert caught.value.hint.startswith("convert it first")
    with pytest.raises(ConfigError, match=message):
        open_pretrained(settings, settings.name, LabelNames.of(TASK))
    (tmp_path / "pytorch_model.bin").write_text("")
    assert make_tokenizer(settings, SOURCE, NullProgress()).get_vocab_size() == len(SPECIAL_TOKENS)


@pytest.mark.parametrize("name", ["bert/bert_model.ckpt", "bert/model.ckpt-100.index"])
def test_a_file_of_tensorflow_is_refused_with_its_folder(name):
    with pytest.raises(ConfigError, match="is a file of TensorFlow, expected its folder") as caught:
        make_tokenizer(ModelSettings(name=name), SOURCE, NullProgress())
    assert caught.value.hint.startswith("name 'bert': bert_config.json, vocab.txt")
