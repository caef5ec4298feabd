"""Masks on real text of two languages, cut and packed as training does it."""

from itertools import groupby

import numpy as np
import pytest
import torch

from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.progress import Silent
from pipework.run_folder.task import TaskKind
from pipework.text.padding import Padding
from pipework.text.special_tokens import Frame
from pipework.train.config.model import ModelSettings, Preset
from pipework.train.config.train import PretrainSettings
from pipework.train.data.tokenizer import SPECIAL, make_tokenizer
from pipework.train.pretrain.corpus import Laying, corpus
from pipework.train.pretrain.masking import NOT_TOLD, Masker
from pipework.train.pretrain.model_inputs import PackedFeed
from pipework.train.pretrain.segments import unspaced, unspaced_ids

LANGUAGES = {
    "english": ("sst2/dev.tsv", "sentence", True, "bert-base-uncased.vocab.txt"),
    "chinese": ("thucnews_headlines/dev.txt", 0, False, "bert-base-chinese.vocab.txt"),
}


@pytest.fixture(params=LANGUAGES)
def real(request, shared_data):
    """Tokens of the rows of an epoch: as spelled, what is to be told, and what stands there."""
    file, column, header, vocabulary = LANGUAGES[request.param]
    columns = Columns(text=column, label=None)
    path = shared_data / file
    source = Source(path=path, columns=columns, header=header, kind=TaskKind.PRETRAIN)
    vocab = shared_data / "vocabs_configs" / vocabulary
    spelled = make_tokenizer(ModelSettings(preset=Preset.TINY, vocab=vocab), source)
    laying = Laying(max_length=64, row_tokens=128, pairs=False)
    rows = corpus(source, spelled.to_str(), laying, Silent())
    feed = PackedFeed(
        rows,
        frame=Frame.of(spelled),
        masker=Masker(
            settings=PretrainSettings(),
            mask_id=spelled.token_to_id("[MASK]"),
            ordinary=np.setdiff1d(
                np.arange(spelled.get_vocab_size()), [spelled.token_to_id(one) for one in SPECIAL]
            ),
            unspaced_V=unspaced_ids(spelled),
        ),
        padding=Padding(pad_id=0, type_ids=True, pad_type_id=0, left=False),
        seed=0,
        device=torch.device("cpu"),
    )
    inputs = feed.inputs(np.arange(min(400, len(rows))))
    seen_RT = inputs["input_ids"].numpy()
    targets_RT = np.full(seen_RT.shape, NOT_TOLD)
    targets_RT.ravel()[inputs["places"].numpy()] = inputs["targets"].numpy()
    return request.param, spelled, seen_RT, targets_RT


def test_the_rates_hold(real):
    _, spelled, seen_RT, targets_RT = real
    told = targets_RT != NOT_TOLD
    original = np.where(told, targets_RT, seen_RT)
    free = ~np.isin(original, [spelled.token_to_id(one) for one in SPECIAL])
    assert not (told & ~free).any()
    assert told.sum() / free.sum() == pytest.approx(0.15, abs=0.005)
    hidden = seen_RT[told] == spelled.token_to_id("[MASK]")
    assert hidden.mean() == pytest.approx(0.8, abs=0.02)
    assert (seen_RT[told] == targets_RT[told]).mean() == pytest.approx(0.1, abs=0.015)


def test_words_are_whole_and_runs_are_of_characters(real):
    language, spelled, seen_RT, targets_RT = real
    split = several = 0
    lengths = []
    for seen_T, targets_T in zip(seen_RT, targets_RT, strict=True):
        told = targets_T != NOT_TOLD
        tokens = [spelled.id_to_token(int(one)) for one in np.where(told, targets_T, seen_T)]
        for place in range(1, len(tokens)):
            if tokens[place].startswith("##"):
                several += told[place]
                split += told[place] != told[place - 1]
        if language == "chinese":
            lone = [unspaced(token) and hit for token, hit in zip(tokens, told, strict=True)]
            lengths += [len(list(run)) for hit, run in groupby(lone) if hit]
    assert several > 20
    assert split == 0
    if language == "chinese":
        shares = np.bincount(lengths, minlength=5)[1:5] / len(lengths)
        # MacBERT's 40, 30, 20, 10 %, but for runs that end with a text or touch each other.
        assert shares == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.1)
