"""The corpora of train and dev, and the loaders of their batches."""

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from pipework.errors import ConfigError
from pipework.run_folder.read_options import Format
from pipework.text.padding import Padding
from pipework.text.special_tokens import SpecialTokens
from pipework.train.config.run_config import Config
from pipework.train.inputs import vocabulary
from pipework.train.loop.loop import TrainingRun
from pipework.train.pretrain.corpus import Corpus, PackingOptions, corpus
from pipework.train.pretrain.model_inputs import Masker, PackedLoader
from pipework.train.pretrain.segments import unspaced_ids


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainLoaders:
    """The batch loaders of train and dev, and the corpus of train."""

    train: PackedLoader
    dev: PackedLoader
    corpus: Corpus


def has_pairs(config: Config) -> bool:
    """Whether inputs are pairs of segments, for sentence-order prediction."""
    return config.data.format is Format.DOCUMENTS and config.pretrain.sentence_order


def open_loaders(run: TrainingRun, tokenizer: str, padding: Padding) -> PretrainLoaders:
    """Open the corpora; the first process of each machine builds those that are missing.

    Raises:
        ConfigError: the tokenizer, a JSON string, has no mask token.
        DataError: as `corpus`.
    """
    config = run.config
    sources = config.sources()
    options = PackingOptions(
        max_length=config.model.max_length,
        row_tokens=config.pretrain.row_tokens,
        pairs=has_pairs(config),
    )
    train, dev = run.world.first_on_each_machine(
        lambda: (
            corpus(sources["train"], tokenizer, options, run.progress),
            corpus(sources["dev"], tokenizer, options, run.progress),
        )
    )
    loaded = Tokenizer.from_str(tokenizer)
    masker = _masker(config, loaded, tokenizer, padding)

    def loader(rows: Corpus, seed: int) -> PackedLoader:
        return PackedLoader(
            corpus=rows,
            special_tokens=SpecialTokens.of(loaded),
            masker=masker,
            padding=padding,
            seed=seed,
            device=run.world.device,
        )

    # The masked tokens of dev are the same for every seed, so that scores can be compared.
    return PretrainLoaders(train=loader(train, config.train.seed), dev=loader(dev, 0), corpus=train)


def _masker(config: Config, loaded: Tokenizer, tokenizer: str, padding: Padding) -> Masker:
    ids = vocabulary(tokenizer, padding)
    if ids.mask_id == padding.pad_id:
        message = "the tokenizer has no mask token ([MASK] or <mask>)"
        raise ConfigError(message, "use the tokenizer of a masked language model")
    return Masker(
        settings=config.pretrain,
        mask_id=ids.mask_id,
        ordinary=np.setdiff1d(list(loaded.get_vocab().values()), ids.special_ids),
        unspaced_V=unspaced_ids(loaded),
    )
