"""Settings of [model]: the encoder and its head."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipework.settings import Fraction, Positive, Settings

LINEAR_FAMILY = "bag-of-ngrams"  # the model_type of a linear model


class Preset(StrEnum):
    """A model from scratch: a linear model, or the size of an encoder.

    The sizes are those of the published small BERT models: Turc et al. 2019, "Well-Read Students
    Learn Better", https://arxiv.org/abs/1908.08962.
    """

    LINEAR = "linear"
    TINY = "tiny"
    MINI = "mini"
    SMALL = "small"
    MEDIUM = "medium"
    BASE = "base"


class PresetFamily(StrEnum):
    """The model family of a preset."""

    BERT = "bert"
    ALBERT = "albert"


class Head(StrEnum):
    """The head that computes logits from the encoder's states."""

    LINEAR = "linear"
    CNN = "cnn"
    LSTM = "lstm"
    GRU = "gru"
    ENTITY = "entity"
    POOLING = "pooling"


class CnnSettings(Settings):
    """[model.cnn]: filter sizes in tokens, and `filters` per size; defaults of Kim (2014)."""

    filter_sizes: Annotated[tuple[Positive, ...], Field(min_length=1)] = (3, 4, 5)
    filters: Positive = 100


class RnnSettings(Settings):
    """[model.rnn]: `hidden` is the width of a layer in each direction."""

    hidden: Positive = 256
    layers: Positive = 1
    bidirectional: bool = True


class PoolingMode(StrEnum):
    """What the pooling head reads: the mean of all encoder states, or the state of the text."""

    MEAN = "mean"
    CLS = "cls"


class PoolingSettings(Settings):
    """[model.pooling]: with `normalize`, the pooled state is divided by its length."""

    mode: PoolingMode = PoolingMode.MEAN
    normalize: bool = False


class HeadSettings(Settings):
    """Settings of the head; `cnn`, `rnn` and `pooling` apply to the heads of these types."""

    head: Head = Head.LINEAR
    dropout: Fraction = 0.1
    cnn: CnnSettings = CnnSettings()
    rnn: RnnSettings = RnnSettings()
    pooling: PoolingSettings = PoolingSettings()


class ModelSettings(HeadSettings):
    """[model]: a checkpoint by `name`, or a `preset` trained from scratch.

    train/README.md explains each key. `vocab`, like `task.labels`, is relative to `data.root`. A
    checkpoint with a table of `ngrams` keeps it.
    """

    name: str | None = None
    preset: Preset | None = None
    family: PresetFamily = PresetFamily.BERT
    embedding: Positive = 128
    vocab: Path | None = None
    vocab_size: Positive = 8000
    split_cjk: bool = True
    lowercase: bool | None = None
    ngrams: Annotated[int, Field(ge=0)] = 0
    freeze: bool = False
    max_length: Annotated[int, Field(ge=3)] = 128

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.name is None) == (self.preset is None):
            message = "expected one of model.name (hub id or folder) and model.preset; "
            message += "--set model.preset= removes a key"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _linear_is_whole(self) -> Self:
        if self.preset is Preset.LINEAR and (self.head is not Head.LINEAR or self.freeze):
            message = "model.preset linear has no encoder: remove model.head and model.freeze"
            raise ValueError(message)
        return self
