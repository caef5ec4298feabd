"""Sources that cannot be imported: each is refused with one line that names the cause."""

import json
import re
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertForTokenClassification,
    CanineConfig,
    CanineTokenizer,
    ConvBertConfig,
    FNetConfig,
    FunnelConfig,
    GPT2Config,
    NystromformerConfig,
    T5Config,
    TapasConfig,
)

from pipework.benchmarks.studies.imports import save_classifier
from pipework.data.examples import Example
from pipework.errors import ConfigError, PipeError
from pipework.export.config import ImportSettings
from pipework.export.importing import comparison
from pipework.export.importing.run import import_source
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from tests.commands import pipe
from tests.export.importing.conftest import edit_json


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def write_weights(folder, weights):
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def json_file(name, **changes):
    """Return a fault: changed keys of a JSON file."""

    def edit(folder):
        edit_json(folder / name, **changes)

    return edit


config, tokens = partial(json_file, "config.json"), partial(json_file, "tokenizer_config.json")
TWO_LABELS = config(id2label={"0": "sport", "1": "money"}, label2id={"sport": 0, "money": 1})
CUSTOM_CODE = config(auto_map={"AutoModelForSequenceClassification": "model.Classifier"})
TANH = config(sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"})


def saved_as(kind):
    """Return a fault: the weights in another class of transformers."""

    def save(folder):
        kind.from_pretrained(folder).save_pretrained(folder)

    return save


def other_vocabulary(folder):
    fields = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = fields["model"]["vocab"]
    vocabulary |= {f"word{number}": len(vocabulary) + number for number in range(200)}
    (folder / "tokenizer.json").write_text(json.dumps(fields))


def without_head(folder):
    saved_as(AutoModel)(folder)
    edit_json(folder / "config.json", architectures=None)


def pickled_code(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"weights": pytest.approx(1)}, folder / "pytorch_model.bin")


def missing_shard(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="30KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[-1].unlink()


def without_pad_token(folder):
    edit_json(folder / "tokenizer_config.json", pad_token=None)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


def nan_weights(folder):
    weights = weights_of(folder)
    weights["classifier.bias"][1] = float("nan")
    write_weights(folder, weights)


def missing_weight(folder):
    weights = weights_of(folder)
    del weights["classifier.bias"]
    write_weights(folder, weights)


def keras(folder):
    (folder / "model.safetensors").unlink()
    (folder / "tf_model.h5").write_bytes(b"\x89HDF")


def family(config):
    """Return a fault: a new model of another family with this config."""

    def save(folder):
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)

    return save


GPT2 = GPT2Config(n_embd=32, n_layer=1, n_head=2, num_labels=3, vocab_size=400)
T5 = T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, num_labels=3, vocab_size=400)
TAPAS = TapasConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_labels=3,
    vocab_size=400,
)


def encoder_decoder_adapter(folder):
    base = shutil.copytree(folder, folder / "base")
    edit_json(base / "config.json", is_encoder_decoder=True)
    fields = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    weights = {"base_model.model.classifier.weight": torch.zeros(3, 32)}
    save_file(weights, folder / "adapter_model.safetensors")


def damaged_activation(folder):
    (folder / "config_sentence_transformers.json").write_text("{")


def null_label(folder):
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"id2label": {"0": None, "1": "c", "2": "d"}}
    del fields["label2id"]
    path.write_text(json.dumps(fields))


def other_activation(folder):
    save_classifier(folder, labels=1, sentence_transformers={"activation_fn": "mine.Sigmoid"})


def nothing(folder):
    del folder


FAULTS = [
    (TWO_LABELS, "id2label in config.json has 2 labels, but classifier.bias has 3 rows", ()),
    (
        config(id2label={"0": "a", "1": "b", "3": "c"}, label2id=None),
        "id2label has the ids [0, 1, 3], expected 0 to 2",
        (),
    ),
    (other_vocabulary, "has 600 ids, the embedding has 400 rows", ()),
    (without_head, "2 weights missing, such as classifier.bias", ()),
    (saved_as(AutoModel), "is a BertModel, expected a sequence or token classifier", ()),
    (saved_as(BertForTokenClassification), "has no tag 'O' outside of spans", ()),
    (pickled_code, "the weights are a pickle that contains more than tensors", ()),
    (CUSTOM_CODE, "needs code of its own (auto_map in config.json)", ()),
    (missing_shard, "names model-00005-of-00005.safetensors, which is missing", ()),
    (without_pad_token, "has no pad token", ()),
    (nan_weights, "classifier.bias contains NaN or infinity", ()),
    (
        config(intermediate_size=48),
        "intermediate.dense.bias has the shape [64], the config needs [48]",
        (),
    ),
    (missing_weight, "1 weight missing, such as classifier.bias", ()),
    (TANH, "activation_fn torch.nn.modules.activation.Tanh is not", ()),
    (family(GPT2), "has no pad_token_id in config.json, which separates texts of a batch", ()),
    (family(T5), "has an encoder and a decoder, of the family t5", ()),
    (family(TAPAS), "cannot be run on every input: it fails for one with 45 tokens (Index", ()),
    (config(pad_token_id=-1), "has the pad_token_id -1 in config.json, expected 0 to 399", ()),
    (config(is_encoder_decoder=True), "has an encoder and a decoder, of the family bert", ()),
    (encoder_decoder_adapter, "has an encoder and a decoder, of the family bert", ()),
    (damaged_activation, "cannot be opened: Expecting property name", ()),
    (
        config(id2label={"0": "a", "1": "a", "2": "b"}, label2id=None),
        "expected distinct labels in a line without outer spaces, found ('a', 'a'",
        (),
    ),
    (
        config(quantization_config={"quant_method": "gptq"}),
        "is quantised (quantization_config in config.json)",
        (),
    ),
    (null_label, "labels in a line without outer spaces, found ('', 'c', 'd')", ()),
    (
        tokens(auto_map={"AutoTokenizer": ["a.B", None]}),
        "needs code of its own (auto_map in tokenizer_config.json)",
        (),
    ),
    (tokens(model_max_length=2), "has the model_max_length 2", ()),
    (other_activation, "the activation_fn mine.Sigmoid is not supported", ()),
    (
        json_file("tokenizer.json", post_processor=None),
        "the source cannot be run on every input: ",
        (),
    ),
    (keras, "has only weights of Keras (tf_model.h5), expected those of PyTorch or of Tens", ()),
    (nothing, "metric pearson", ("task.metric=pearson",)),
    (nothing, "--set max_lenght: unknown key", ("max_lenght=8",)),
]


@pytest.mark.parametrize(("fault", "message", "settings"), FAULTS)
def test_a_fault_is_named_in_one_line(fault, message, settings, classifier_folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(classifier_folder, source)
    fault(source)
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = pipe("import", source, "--out", tmp_path / "run", *overrides)
    assert done.returncode == PipeError.exit_code, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert message in line
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
HEADS = {**SIZES, "num_attention_heads": 2}
FUNNEL = {"block_sizes": [1, 1], "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64}
BATCH = "predicts differently for an input alone and in a batch of 2: logits"
TWO_TOKENS = "cannot be run on every input: it fails for one with 2 tokens (RuntimeError"
PYTHON_CODE = "has a CanineTokenizer, which is Python code"
REFUSED = [
    (ConvBertConfig, {**HEADS, "embedding_size": 32}, BATCH),
    (FNetConfig, SIZES, BATCH),
    (NystromformerConfig, {**HEADS, "num_landmarks": 4, "segment_means_seq_len": 4}, BATCH),
    (FunnelConfig, FUNNEL, TWO_TOKENS),
    (CanineConfig, {**HEADS, "local_transformer_stride": 16}, PYTHON_CODE),
]


@pytest.mark.parametrize(("kind", "sizes", "message"), REFUSED)
def test_a_family_that_no_engine_can_reproduce_is_refused(
    kind, sizes, message, classifier_folder, tmp_path, monkeypatch
):
    config = kind(vocab_size=400, num_labels=3, initializer_range=0.5, **sizes)
    source = tmp_path / "source"
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(source)
    CanineTokenizer().save_pretrained(source)
    if kind is not CanineConfig:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(classifier_folder / name, source)
    monkeypatch.setattr(comparison, "COMPARED_ROWS", 20)
    empty = {"empty": Example(text="")}
    monkeypatch.setattr(comparison, "edge_examples", lambda _: empty)  # of more than 400 inputs
    options = ImportSettings()
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        import_source(str(source), tmp_path / "run", [], options, NullProgress())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_absent_source_is_named(tmp_path):
    done = pipe("import", tmp_path / "none", "--out", tmp_path / "run")
    assert f"error: checkpoint '{tmp_path / 'none'}' is not a folder" in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        {"output_attentions": True},
        {"return_dict": False},
        {"attn_implementation": "flash_attention_2"},
        {"_attn_implementation": "flash_attention_2"},
    ],
)
def test_options_of_the_program_in_a_config_change_nothing(classifier_folder, tmp_path, option):
    source = shutil.copytree(classifier_folder, tmp_path / "source")
    edit_json(source / "config.json", **option)
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_weights_of_a_wrapped_module_are_read(prefix, classifier_folder, tmp_path):
    source = shutil.copytree(classifier_folder, tmp_path / "source")
    write_weights(source, {prefix + name: values for name, values in weights_of(source).items()})
    done = pipe("import", source, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(tmp_path / "run")
    assert f"the names of its weights were read without {prefix!r}" in manifest.data.findings
    stored, expected = weights_of(tmp_path / "run/checkpoint"), weights_of(classifier_folder)
    assert all(torch.equal(stored[name], values) for name, values in expected.items())
