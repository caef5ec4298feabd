"""States of a frozen encoder are computed once and give the same logits as the model."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish
from pipework.errors import DataError
from pipework.progress import NullProgress
from pipework.train.config.model import Head
from pipework.train.data.disk_cache import cache_folder
from pipework.train.data.token_cache import TokenSet
from pipework.train.loop.encoder_states import encoder_states
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import padding_of
from tests.tiny_models import SampleRows, open_tiny, optimizer_of
from tests.train.counted_progress import CountedProgress


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A frozen model of a family with a head, and the tokens of the rows."""
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))

    def make(family=EncoderFamily.BERT, head=Head.CNN):
        rows = SampleRows.of(family)
        publish(family, rows.tokenizer, tmp_path / family)
        model = open_tiny(rows, tmp_path / family, head)
        model.freeze()
        encodings = rows.encodings(type_ids=padding_of(model).type_ids, marked=False)
        return model, tokens_of(encodings), encodings

    return make


def tokens_of(encodings):
    lengths = [len(encoding) for encoding in encodings]
    types = [row.type_ids for row in encodings if row.type_ids is not None]
    return TokenSet(
        ids=np.concatenate([encoding.ids for encoding in encodings]),
        type_ids=np.concatenate(types) if types else np.empty(0, np.int8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        spans=np.empty((0, 4), np.int32),
        truth=np.arange(len(encodings), dtype=np.int32) % 8,
    )


@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
@pytest.mark.parametrize("family", EncoderFamily)
def test_logits_from_the_cache_equal_those_of_the_model(parts, family, head):
    model, tokens, encodings = parts(family, head)
    features = encoder_states(model, tokens, NullProgress())
    rows = [5, 0, 63, 17]
    with torch.inference_mode():
        selected = [encodings[row] for row in rows]
        direct = model.eval()(**model_inputs(selected, padding_of(model), model.device))
        cached = model.from_states(*features.batch(rows, model.device))
    torch.testing.assert_close(cached, direct, atol=1e-5, rtol=0)
    states_BTH, mask_BT = features.batch(rows, model.device)
    assert mask_BT.sum(1).tolist() == [len(row) for row in selected]
    assert (states_BTH.shape[2], states_BTH.dtype) == (32, torch.float32)


def test_states_are_computed_again_with_another_precision_of_products(parts, monkeypatch):
    model, tokens, _ = parts()
    for precision, expected in (("highest", 64), ("high", 64), ("highest", 0)):
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda value=precision: value)
        encoder_states(model, tokens, counter := CountedProgress())
        assert counter.done == expected


def test_states_are_computed_once_until_tokens_or_encoder_change(parts):
    model, tokens, _ = parts()
    for expected in (64, 0):
        counter = CountedProgress()
        encoder_states(model, tokens, counter)
        assert counter.done == expected
    with torch.no_grad():
        next(model.head.parameters()).add_(1)  # the head does not affect the states
    encoder_states(model, tokens, counter := CountedProgress())
    assert counter.done == 0
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[7, 0] += 1
    encoder_states(model, tokens, counter := CountedProgress())
    assert counter.done == 64
    other = replace(tokens, ids=tokens.ids[::-1])
    encoder_states(model, other, counter := CountedProgress())
    assert counter.done == 64


def test_an_interrupted_computation_is_not_used_as_cache(parts):
    model, tokens, _ = parts()
    with pytest.raises(KeyboardInterrupt):
        encoder_states(model, tokens, CountedProgress(most=1))
    encoder_states(model, tokens, counter := CountedProgress())
    assert counter.done == 64


def test_a_full_disk_is_reported(parts, monkeypatch):
    model, tokens, _ = parts()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipework.train.data.disk_cache.os.posix_fallocate", full)
    with pytest.raises(DataError, match=r"cannot write about .* MB to the cache .*: No space left"):
        encoder_states(model, tokens, NullProgress())
    assert not list(cache_folder().rglob("complete"))


@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_gradients_from_the_cache_equal_those_of_the_model(parts, head):
    model, tokens, encodings = parts(EncoderFamily.ALBERT, head)
    target = torch.from_numpy(tokens.truth[:16]).long()
    features = encoder_states(model, tokens, NullProgress())
    whole = model_inputs(encodings[:16], padding_of(model), model.device)
    gradients = []
    for logits in (model(**whole), model.from_states(*features.batch(range(16), model.device))):
        model.zero_grad()
        functional.cross_entropy(logits, target).backward()
        trained = [item for item in model.named_parameters() if item[1].requires_grad]
        gradients.append({name: weight.grad.clone() for name, weight in trained})
    assert gradients[0]
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)


def test_a_head_trains_in_seconds_and_the_encoder_is_unchanged(parts):
    model, tokens, _ = parts()
    before = {name: weight.clone() for name, weight in model.encoder.state_dict().items()}
    features = encoder_states(model, tokens, NullProgress())
    optimizer = optimizer_of(model, 1e-2)
    target = torch.from_numpy(tokens.truth).long()
    random = np.random.default_rng(0)
    start = time.process_time()
    model.train()
    for _ in range(100):
        rows = random.permutation(64)[:32]
        logits = model.from_states(*features.batch(rows, model.device))
        optimizer.zero_grad()
        functional.cross_entropy(logits, target[rows]).backward()
        optimizer.step()
    assert time.process_time() - start < 20
    predicted = model.eval().from_states(*features.batch(range(64), model.device)).argmax(1)
    assert (predicted == target).float().mean() > 0.9
    after = model.encoder.state_dict()
    assert all(after[name].equal(weight) for name, weight in before.items())
