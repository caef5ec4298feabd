"""[model]: which encoder, with which head."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipework.settings import Fraction, Positive, Settings


class Preset(StrEnum):
    """Sizes trained from scratch: layers x width of the published small BERTs.

    Turc et al. 2019, "Well-Read Students Learn Better", https://arxiv.org/abs/1908.08962.
    """

    TINY = "tiny"
    MINI = "mini"
    SMALL = "small"
    MEDIUM = "medium"
    BASE = "base"


class Family(StrEnum):
    """What a preset is built as."""

    BERT = "bert"
    ALBERT = "albert"


class Head(StrEnum):
    """What turns the encoder's states into logits."""

    LINEAR = "linear"
    CNN = "cnn"
    LSTM = "lstm"
    GRU = "gru"
    ENTITY = "entity"


class CnnSettings(Settings):
    """[model.cnn]: sizes in tokens, and `filters` of each size. The defaults are Kim's (2014)."""

    filter_sizes: Annotated[tuple[Positive, ...], Field(min_length=1)] = (3, 4, 5)
    filters: Positive = 100


class RnnSettings(Settings):
    """[model.rnn]: `hidden` is the width of one direction of one layer."""

    hidden: Positive = 256
    layers: Positive = 1
    bidirectional: bool = True


class HeadSettings(Settings):
    """What a head is made of; `cnn` and `rnn` are read by the heads that they name."""

    head: Head = Head.LINEAR
    dropout: Fraction = 0.1
    cnn: CnnSettings = CnnSettings()
    rnn: RnnSettings = RnnSettings()


class ModelSettings(HeadSettings):
    """[model]: a checkpoint by `name`, or a `preset` trained from scratch.

    `name` is a folder, relative to the config file, or a hub id. `vocab`, like `task.labels`,
    starts at `data.root`; with `name` it stands for the checkpoint's own tokenizer.

    A preset learns a WordPiece vocabulary of `vocab_size` from the train texts (more only where
    they hold more characters), or takes `vocab` (a vocab.txt). `split_cjk` makes each Chinese
    character a word of its own, as BERT does; without it, pieces of several characters are learned.
    `family` says as what it is built; albert shares one layer and embeds in `embedding` numbers.

    `ngrams` is the size of a table of hashed pairs and triples of tokens whose embeddings are added
    to those of the tokens; 0 for none. A checkpoint that has one brings it along.

    With `freeze` the encoder stays as it is and the head learns alone.
    """

    name: str | None = None
    preset: Preset | None = None
    family: Family = Family.BERT
    embedding: Positive = 128
    vocab: Path | None = None
    vocab_size: Positive = 8000
    split_cjk: bool = True
    lowercase: bool = True
    ngrams: Annotated[int, Field(ge=0)] = 0
    freeze: bool = False
    max_length: Annotated[int, Field(ge=3)] = 128

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.name is None) == (self.preset is None):
            message = "expected one of model.name (hub id or folder) and model.preset"
            raise ValueError(message)
        return self
