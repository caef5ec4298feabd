"""Configs of the encoders that are trained from scratch.

Shapes: H width of the encoder.
"""

from tokenizers import Tokenizer
from transformers import AlbertConfig, BertConfig, PreTrainedConfig

from pipework.train.config.model import ModelSettings, Preset, PresetFamily

HEAD_WIDTH = 64


def size(preset: Preset) -> tuple[int, int]:
    """Return the number of layers and the width of a preset."""
    match preset:
        case Preset.TINY:
            return 2, 128
        case Preset.MINI:
            return 4, 256
        case Preset.SMALL:
            return 4, 512
        case Preset.MEDIUM:
            return 8, 512
        case Preset.BASE:
            return 12, 768


def preset_config(
    settings: ModelSettings, preset: Preset, tokenizer: Tokenizer
) -> PreTrainedConfig:
    """Return the config of a preset for a vocabulary.

    ALBERT follows Lan et al. 2020 (https://arxiv.org/abs/1909.11942): token embeddings of width
    `model.embedding` are projected to H, and all layers share their weights.
    """
    layers, width = size(preset)
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD_WIDTH,
        "intermediate_size": 4 * width,
        "max_position_embeddings": settings.max_length,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
        "pad_token_id": tokenizer.token_to_id("[PAD]"),
    }
    match settings.family:
        case PresetFamily.BERT:
            return BertConfig(**sizes)
        case PresetFamily.ALBERT:
            return AlbertConfig(
                **sizes,
                embedding_size=settings.embedding,
                num_hidden_groups=1,
                classifier_dropout_prob=settings.dropout,
                bos_token_id=tokenizer.token_to_id("[CLS]"),
                eos_token_id=tokenizer.token_to_id("[SEP]"),
            )
