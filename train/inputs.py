"""The inputs of a classifier in training: token caches of its data files, and batch loaders."""

from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Tokenizer
from torch import nn

from pipework.data.examples import Source
from pipework.tasks.task import Task
from pipework.tasks.windows import Windows
from pipework.text.padding import Padding
from pipework.train.data.token_cache import JoinedTokens, TokenRows, TokenSet, open_token_cache
from pipework.train.data.tokenizer import SPECIAL_TOKENS
from pipework.train.loop.encoder_states import encoder_states
from pipework.train.loop.loop import TrainingRun
from pipework.train.loop.model_inputs import (
    BatchLoader,
    HeadOnly,
    StateLoader,
    TokenLoader,
    Vocabulary,
)
from pipework.train.model.classifier import Classifier, padding_of, unused_parameters
from pipework.train.prepare import PreparedRun


@dataclass(frozen=True, kw_only=True)
class TokenSets:
    """The token caches for training and evaluation."""

    train: TokenSet
    unlabelled: TokenSet | None
    dev: TokenSet
    vocabulary: Vocabulary

    @property
    def epoch(self) -> TokenRows:
        """The rows of an epoch: labelled rows first, then unlabelled rows."""
        if self.unlabelled is None:
            return self.train
        return JoinedTokens(parts=(self.train, self.unlabelled))


def open_token_sets(run: TrainingRun, prepared: PreparedRun, model: Classifier) -> TokenSets:
    """Open the token caches; the first process of each machine builds missing caches."""
    config = run.config
    sources = config.sources()
    unlabelled = config.data.unlabelled_source()
    padding = padding_of(model)
    encoder = prepared.encoder(config.model.max_length, type_ids=padding.type_ids)

    stride = config.train.window_stride
    windows = None if stride is None else Windows(stride=stride)

    def opened(source: Source, task: Task | None, windows: Windows | None = None) -> TokenSet:
        return open_token_cache(source, prepared.tokenizer, encoder, task, run.progress, windows)

    train, dev, rest = run.world.first_on_each_machine(
        lambda: (
            opened(sources["train"], prepared.task, windows),
            opened(sources["dev"], prepared.task),
            None if unlabelled is None else opened(unlabelled, None),
        )
    )
    special_ids = vocabulary(prepared.tokenizer, padding)
    return TokenSets(train=train, unlabelled=rest, dev=dev, vocabulary=special_ids)


def vocabulary(tokenizer: str, padding: Padding) -> Vocabulary:
    """Return the special ids of a tokenizer, a JSON string."""
    opened = Tokenizer.from_str(tokenizer)
    special = [index for index, token in opened.get_added_tokens_decoder().items() if token.special]
    # A vocab.txt does not mark its special tokens as such.
    special += [i for i in map(opened.token_to_id, SPECIAL_TOKENS) if i is not None]
    masks = [opened.token_to_id(token) for token in ("[MASK]", "<mask>")]
    mask_id = next((mask for mask in masks if mask is not None), padding.pad_id)
    special_ids = tuple(sorted({*special, padding.pad_id}))
    return Vocabulary(padding=padding, mask_id=mask_id, special_ids=special_ids)


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The module that is trained and its inputs: token ids, or states of a frozen encoder."""

    module: nn.Module
    train: BatchLoader
    dev: BatchLoader


def open_loaders(run: TrainingRun, model: Classifier, data: TokenSets) -> Loaders:
    """Return the loaders of a model; a frozen encoder computes its states here, once."""
    device = run.world.device
    dev = TokenLoader(rows=data.dev, vocabulary=data.vocabulary, device=device)
    # DistributedDataParallel waits forever for the gradients of unused parameters.
    for name in unused_parameters(model, dev.inputs(np.array([0]))):
        model.get_parameter(name).requires_grad_(False)
    if not run.config.model.freeze:
        dropout = run.config.train.token_dropout
        train = replace(dev, rows=data.epoch, token_dropout=dropout)
        return Loaders(module=model, train=train, dev=dev)

    def states(tokens: TokenSet) -> StateLoader:
        features = encoder_states(model, tokens, run.progress)
        return StateLoader(features=features, rows=tokens, device=device)

    train_states, dev_states = run.world.first_on_each_machine(
        lambda: (states(data.train), states(data.dev))
    )
    return Loaders(module=HeadOnly(model), train=train_states, dev=dev_states)
