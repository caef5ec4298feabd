import json

import pytest
from transformers import AlbertConfig, BertConfig

from pipework.errors import ConfigError
from pipework.train.model.encoder_configs import read_config

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}
GOOGLE = {
    **SIZES,
    "embedding_size": 8,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
}
BRIGHTMART = {**SIZES, "embedding_size": 8, "ln_type": "postln", "directionality": "bidi"}
# The expected family of every config file of the collection, or the expected error.
COLLECTION = {
    "albert_zh.albert_config_base": "albert",
    "albert_zh.albert_config_large": "albert",
    "albert_zh.albert_config_xlarge": "albert",
    "albert_zh.albert_config_tiny": "albert",
    "albert_zh.albert_config_small_google": "albert",
    "albert_zh.albert_config_tiny_google": "albert",
    "albert_zh.albert_config_base_google_fast": "num_hidden_groups 12",
    "albert_zh.albert_config_tiny_google_fast": "num_hidden_groups 12",
    "albert_zh.albert_config_xxlarge": "ln_type 'preln'",
    "albert_zh.bert_config": "bert",
    "bert-base-chinese.config": "bert",
    "bert-base-uncased.bert_config": "bert",
}


def written(tmp_path, fields, name="bert_config.json"):
    (tmp_path / name).write_text(json.dumps(fields))
    return str(tmp_path)


@pytest.mark.parametrize("name", COLLECTION)
def test_each_published_config_is_converted_or_refused(shared_data, tmp_path, name):
    text = (shared_data / "vocabs_configs" / f"{name}.json").read_text()
    (tmp_path / "config.json").write_text(text)
    expected = COLLECTION[name]
    if " " in expected:
        with pytest.raises(ConfigError, match=expected):
            read_config(str(tmp_path))
        return
    config = read_config(str(tmp_path))
    assert config.model_type == expected
    for key, value in json.loads(text).items():
        if key in ("hidden_size", "embedding_size", "num_hidden_layers", "vocab_size"):
            assert getattr(config, key) == value


@pytest.mark.parametrize("fields", [GOOGLE, BRIGHTMART])
def test_an_albert_shares_all_its_layers(tmp_path, fields):
    config = read_config(written(tmp_path, fields, "albert_config_tiny.json"))
    assert isinstance(config, AlbertConfig)
    assert (config.num_hidden_groups, config.inner_group_num) == (1, 1)
    assert (config.embedding_size, config.hidden_size, config.hidden_act) == (8, 16, "gelu")


def test_a_config_without_albert_keys_is_bert(tmp_path):
    assert isinstance(read_config(written(tmp_path, SIZES)), BertConfig)


def test_the_name_of_the_folder_is_ignored(tmp_path):
    (tmp_path / "roberta-albert").mkdir()
    config = read_config(written(tmp_path / "roberta-albert", SIZES, "config.json"))
    assert isinstance(config, BertConfig)


def test_model_type_determines_the_family(tmp_path):
    fields = {**SIZES, "model_type": "electra"}
    assert read_config(written(tmp_path, fields, "config.json")).model_type == "electra"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {**GOOGLE, "num_hidden_groups": 2},
            "num_hidden_groups 2, but transformers supports only 1",
        ),
        ({**GOOGLE, "num_memory_blocks": 3}, "num_memory_blocks 3"),
        ({**BRIGHTMART, "ln_type": "preln"}, "ln_type 'preln'"),
        (
            {**SIZES, "embedding_size": 8},
            "has the key embedding_size, which no supported format has",
        ),
        ({**SIZES, "type_vocab_size": 1}, "type_vocab_size 1: it may be RoBERTa or BERT"),
        (
            {**SIZES, "norm_place": "before"},
            "has the key norm_place, which no supported format has",
        ),
        ({"d_model": 16}, "has no hidden_size"),
    ],
)
def test_an_ambiguous_config_is_refused(tmp_path, fields, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        read_config(written(tmp_path, fields))
    assert "model_type" in caught.value.hint


def test_an_invalid_config_file_is_reported(tmp_path):
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_config(str(tmp_path))
