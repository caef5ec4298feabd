"""Tiny encoders of each family with random weights, and tokenizers for them."""

import json
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedTokenizerFast

from pipework.data.examples import Example, Source
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.run_config import SAMPLE
from pipework.train.data.tokenizer import learn_wordpiece

ROWS = 64
WIDTH = 32
SOURCE = Source(path=SAMPLE / "train.tsv")
INIT_STD = 0.1  # with the usual 0.02 a width of 32 starts too close to zero
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("dropout", "attention_dropout"),
)
FFN_DIMS = ("encoder_ffn_dim", "decoder_ffn_dim")
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


class ImportedFamily(StrEnum):
    """Families that are imported as trained classifiers: decoders, and encoders with a decoder."""

    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    LLAMA = "llama"
    MISTRAL = "mistral"
    GEMMA = "gemma"
    GPT2 = "gpt2"
    BART = "bart"
    MBART = "mbart"
    EUROBERT = "eurobert"


Family = EncoderFamily | ImportedFamily
START, BOTH = "[CLS] $A", "[CLS] $A [SEP]"
TEMPLATES: dict[Family, str] = {  # Qwen and GPT-2 add no special tokens
    **dict.fromkeys((ImportedFamily.LLAMA, ImportedFamily.MISTRAL, ImportedFamily.GEMMA), START),
    **dict.fromkeys((ImportedFamily.BART, ImportedFamily.MBART, ImportedFamily.EUROBERT), BOTH),
}
GROUPED_ATTENTION = (
    *(ImportedFamily.QWEN2, ImportedFamily.QWEN3, ImportedFamily.LLAMA),
    *(ImportedFamily.MISTRAL, ImportedFamily.GEMMA, ImportedFamily.EUROBERT),
)


def sample_examples() -> list[Example]:
    """Return the first rows of the sample, which include every topic."""
    return list(islice(SOURCE.rows(), ROWS))


def tiny(family: Family, vocab_size: int) -> PreTrainedConfig:
    """Return a config with two layers, width 32 and no dropout."""
    config = AutoConfig.for_model(
        family, vocab_size=vocab_size, initializer_range=INIT_STD, **(SPECIAL_IDS | _sizes(family))
    )
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def _sizes(family: Family) -> dict[str, object]:
    """Return sizes under the family's option names, and options of its published models."""
    if family is EncoderFamily.DISTILBERT:
        return {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * WIDTH}
    if family is EncoderFamily.XLNET:
        return {"d_model": WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 2 * WIDTH}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2}
    width: dict[str, object] = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **depth}
    own: dict[Family, dict[str, object]] = {
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
        ImportedFamily.GPT2: {"n_embd": WIDTH, "n_layer": 2, "n_head": 2},
        ImportedFamily.BART: _decoder_sizes(),
        ImportedFamily.MBART: _decoder_sizes(),
        **{
            family: {"head_dim": WIDTH // 2, "num_key_value_heads": 1}
            for family in GROUPED_ATTENTION
        },
    }
    return width | own.get(family, {})


def _decoder_sizes() -> dict[str, object]:
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_layers": 2}
    return {**heads, **dict.fromkeys(FFN_DIMS, 2 * WIDTH)}


def tokenizer_for(family: Family, texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer trained on texts, with special tokens in the family's positions."""
    if family in ImportedFamily:
        return _byte_level(TEMPLATES.get(family, ""), texts)
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


def _byte_level(template: str, texts: Sequence[str]) -> Tokenizer:
    """Return a byte-level tokenizer; without a template it adds no special tokens to a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet),
    )
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template,
            pair=f"{template} {template.replace('$A', '$B')}",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
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
