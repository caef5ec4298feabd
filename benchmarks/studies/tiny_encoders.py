"""Tiny encoders of each family with random weights, and tokenizers for them."""

import json
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedTokenizerFast

from pipework.data.examples import Example, Source
from pipework.data.readers import Columns
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.run_config import SAMPLE
from pipework.train.data.tokenizer import learn_wordpiece

ROWS = 64
WIDTH = 32
SOURCE = Source(path=SAMPLE / "train.tsv", columns=Columns())
INIT_STD = 0.1  # with the usual 0.02 a width of 32 starts too close to zero
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout"),
)
SPECIAL_IDS = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}


class EncoderFamily(StrEnum):
    """The families of the table by their `model_type` in transformers."""

    BERT = "bert"
    ALBERT = "albert"
    ROBERTA = "roberta"
    DISTILBERT = "distilbert"
    ELECTRA = "electra"
    XLNET = "xlnet"
    MODERNBERT = "modernbert"
    DEBERTA = "deberta-v2"
    MPNET = "mpnet"
    CAMEMBERT = "camembert"
    XLM_ROBERTA = "xlm-roberta"
    REMBERT = "rembert"


def sample_examples() -> list[Example]:
    """Return the first rows of the sample, which include every topic."""
    return list(islice(SOURCE.rows(), ROWS))


def tiny(family: EncoderFamily, vocab_size: int) -> PreTrainedConfig:
    """Return a config with two layers, width 32 and no dropout."""
    config = AutoConfig.for_model(
        family, vocab_size=vocab_size, initializer_range=INIT_STD, **(SPECIAL_IDS | _sizes(family))
    )
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def _sizes(family: EncoderFamily) -> dict[str, object]:
    """Return sizes under the family's option names, and options of its published models."""
    if family is EncoderFamily.DISTILBERT:
        return {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * WIDTH}
    if family is EncoderFamily.XLNET:
        return {"d_model": WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 2 * WIDTH}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2}
    width: dict[str, object] = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **depth}
    own: dict[EncoderFamily, dict[str, object]] = {
        EncoderFamily.ALBERT: {"embedding_size": WIDTH // 2},
        EncoderFamily.ELECTRA: {"embedding_size": WIDTH // 2},
        EncoderFamily.REMBERT: {
            "input_embedding_size": WIDTH // 2,
            "output_embedding_size": WIDTH // 2,
        },
        EncoderFamily.ROBERTA: {"type_vocab_size": 1},
        EncoderFamily.CAMEMBERT: {"type_vocab_size": 1},
        EncoderFamily.XLM_ROBERTA: {"type_vocab_size": 1},
        EncoderFamily.MPNET: {"pad_token_id": 1},
        EncoderFamily.MODERNBERT: {"local_attention": 32},  # fewer tokens than the longest texts
        EncoderFamily.DEBERTA: {  # version 3
            "relative_attention": True,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "position_biased_input": False,
        },
    }
    return width | own.get(family, {})


def tokenizer_for(family: EncoderFamily, texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer trained on texts, with special tokens in the family's positions."""
    settings = ModelSettings(preset=Preset.TINY, vocab_size=400)
    tokenizer = learn_wordpiece(settings, lambda: texts)
    if family is EncoderFamily.MPNET:  # its code uses padding id 1 regardless of the config
        tokenizer = _swap_ids(tokenizer, "[PAD]", "[UNK]")
    if family is EncoderFamily.XLNET:
        ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=ends
        )
    return tokenizer


def _swap_ids(tokenizer: Tokenizer, first: str, second: str) -> Tokenizer:
    """Return a tokenizer in which the ids of two special tokens are swapped."""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    for token in state["added_tokens"]:
        token["id"] = vocab[token["content"]]
    return Tokenizer.from_str(json.dumps(state))


def publish(family: EncoderFamily, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an encoder with random weights and its tokenizer in the layout of model hubs."""
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny(family, tokenizer.get_vocab_size()))
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")  # noqa: S106
    wrapped.save_pretrained(folder)
