"""Masks on real texts of two languages, split and packed as in training."""

from itertools import groupby

import numpy as np
import pytest
import torch

from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.progress import NullProgress
from pipework.text.padding import Padding
from pipework.text.special_tokens import SpecialTokens
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.train import PretrainSettings
from pipework.train.data.tokenizer import SPECIAL_TOKENS, make_tokenizer
from pipework.train.pretrain.corpus import PackingOptions, corpus
from pipework.train.pretrain.model_inputs import NO_TARGET, Masker, PackedLoader
from pipework.train.pretrain.segments import unspaced, unspaced_ids

LANGUAGES = {
    "english": ("sst2/dev.tsv", "sentence", True, "bert-base-uncased.vocab.txt"),
    "chinese": ("thucnews_headlines/dev.txt", 0, False, "bert-base-chinese.vocab.txt"),
}


@pytest.fixture(params=LANGUAGES)
def real(request, shared_data):
    """Language, tokenizer, input ids and target ids of the rows of an epoch."""
    file, column, header, vocabulary = LANGUAGES[request.param]
    columns = Columns(text=column, label=None)
    path = shared_data / file
    source = Source(path=path, columns=columns, header=header, kind="pretrain")
    vocab = shared_data / "vocabs_configs" / vocabulary
    tokenizer = make_tokenizer(ModelSettings(preset=Preset.TINY, vocab=vocab), source)
    options = PackingOptions(max_length=64, row_tokens=128, pairs=False)
    rows = corpus(source, tokenizer.to_str(), options, NullProgress())
    loader = PackedLoader(
        rows,
        special_tokens=SpecialTokens.of(tokenizer),
        masker=Masker(
            settings=PretrainSettings(),
            mask_id=tokenizer.token_to_id("[MASK]"),
            ordinary=np.setdiff1d(
                np.arange(tokenizer.get_vocab_size()),
                [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS],
            ),
            unspaced_V=unspaced_ids(tokenizer),
        ),
        padding=Padding(pad_id=0, type_ids=True, pad_type_id=0, left=False),
        seed=0,
        device=torch.device("cpu"),
    )
    inputs = loader.inputs(np.arange(min(400, len(rows))))
    input_RT = inputs["input_ids"].numpy()
    targets_RT = np.full(input_RT.shape, NO_TARGET)
    targets_RT.ravel()[inputs["places"].numpy()] = inputs["targets"].numpy()
    return request.param, tokenizer, input_RT, targets_RT


def test_the_mask_rates_are_as_configured(real):
    _, tokenizer, input_RT, targets_RT = real
    masked = targets_RT != NO_TARGET
    original = np.where(masked, targets_RT, input_RT)
    free = ~np.isin(original, [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS])
    assert not (masked & ~free).any()
    assert masked.sum() / free.sum() == pytest.approx(0.15, abs=0.005)
    hidden = input_RT[masked] == tokenizer.token_to_id("[MASK]")
    assert hidden.mean() == pytest.approx(0.8, abs=0.02)
    assert (input_RT[masked] == targets_RT[masked]).mean() == pytest.approx(0.1, abs=0.015)


def test_words_are_masked_whole_and_chinese_in_character_spans(real):
    language, tokenizer, input_RT, targets_RT = real
    split = several = 0
    lengths = []
    for input_T, targets_T in zip(input_RT, targets_RT, strict=True):
        masked = targets_T != NO_TARGET
        tokens = [
            tokenizer.id_to_token(int(index)) for index in np.where(masked, targets_T, input_T)
        ]
        for place in range(1, len(tokens)):
            if tokens[place].startswith("##"):
                several += masked[place]
                split += masked[place] != masked[place - 1]
        if language == "chinese":
            masked_characters = [
                unspaced(token) and hit for token, hit in zip(tokens, masked, strict=True)
            ]
            lengths += [len(list(run)) for hit, run in groupby(masked_characters) if hit]
    assert several > 20
    assert split == 0
    if language == "chinese":
        shares = np.bincount(lengths, minlength=5)[1:5] / len(lengths)
        # MacBERT's 40, 30, 20, 10 %, except spans at the end of a text or next to each other.
        assert shares == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.1)
