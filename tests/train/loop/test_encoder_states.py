"""A frozen encoder's states are computed once, and give the answers that the model gives."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipework.benchmarks.studies.families import Family, Rows, open_tiny, optimizer_of, publish
from pipework.errors import DataError
from pipework.progress import Silent
from pipework.train.config.model import Head
from pipework.train.data.token_cache import TokenSet, cache_folder
from pipework.train.loop.encoder_states import feature_set
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import padding_of


class Counting(Silent):
    def __init__(self):
        self.rows = 0

    def advance(self, count, figures=None):  # noqa: ARG002
        self.rows += count


class Interrupting(Silent):
    def advance(self, count, figures=None):  # noqa: ARG002
        raise KeyboardInterrupt


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A frozen model of a family with a head, and the tokens of the rows."""
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))

    def make(family=Family.BERT, head=Head.CNN):
        rows = Rows.of(family)
        publish(family, rows.tokenizer, tmp_path / family)
        model = open_tiny(rows, tmp_path / family, head)
        model.freeze()
        encodings = rows.encodings(type_ids=padding_of(model).type_ids, marked=False)
        return model, tokens_of(encodings), encodings

    return make


def tokens_of(encodings):
    lengths = [len(one) for one in encodings]
    types = [one.type_ids for one in encodings if one.type_ids is not None]
    return TokenSet(
        ids=np.concatenate([one.ids for one in encodings]),
        type_ids=np.concatenate(types) if types else np.empty(0, np.int8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        spans=np.empty((0, 4), np.int32),
        truth=np.arange(len(encodings), dtype=np.int32) % 8,
    )


@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
@pytest.mark.parametrize("family", Family)
def test_the_logits_from_the_cache_are_the_direct_ones(parts, family, head):
    model, tokens, encodings = parts(family, head)
    features = feature_set(model, tokens, Silent())
    rows = [5, 0, 63, 17]
    with torch.inference_mode():
        given = [encodings[row] for row in rows]
        direct = model.eval()(**model_inputs(given, padding_of(model), model.device))
        kept = model.from_states(*features.batch(rows, model.device))
    torch.testing.assert_close(kept, direct, atol=1e-5, rtol=0)
    states = features.states(rows)
    assert [one.shape for one in states] == [(len(one), 32) for one in given]
    assert {one.dtype for one in states} == {np.dtype(np.float32)}
    assert len(features) == 64


def test_every_row_is_computed_once_and_never_again_until_something_changes(parts):
    model, tokens, _ = parts()
    for expected in (64, 0):
        counting = Counting()
        feature_set(model, tokens, counting)
        assert counting.rows == expected
    with torch.no_grad():
        next(model.head.parameters()).add_(1)  # a head changes no state
    feature_set(model, tokens, counting := Counting())
    assert counting.rows == 0
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[7, 0] += 1
    feature_set(model, tokens, counting := Counting())
    assert counting.rows == 64
    other = replace(tokens, ids=tokens.ids[::-1])
    feature_set(model, other, counting := Counting())
    assert counting.rows == 64


def test_a_computation_that_was_interrupted_is_not_taken_for_a_cache(parts):
    model, tokens, _ = parts()
    with pytest.raises(KeyboardInterrupt):
        feature_set(model, tokens, Interrupting())
    feature_set(model, tokens, counting := Counting())
    assert counting.rows == 64


def test_a_disk_without_room_is_one_line(parts, monkeypatch):
    model, tokens, _ = parts()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipework.train.data.disk_cache.os.posix_fallocate", full)
    with pytest.raises(DataError, match=r"GiB of features in .* No space left"):
        feature_set(model, tokens, Silent())
    assert not list(cache_folder().rglob("complete"))


@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_a_step_from_the_cache_is_the_step_of_the_whole_model(parts, head):
    model, tokens, encodings = parts(Family.ALBERT, head)
    target = torch.from_numpy(tokens.truth[:16]).long()
    features = feature_set(model, tokens, Silent())
    whole = model_inputs(encodings[:16], padding_of(model), model.device)
    found = []
    for logits in (model(**whole), model.from_states(*features.batch(range(16), model.device))):
        model.zero_grad()
        functional.cross_entropy(logits, target).backward()
        trained = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
        found.append({name: gradient.clone() for name, gradient in trained.items()})
    assert found[0]
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_a_head_learns_in_seconds_while_the_encoder_stays_as_it_is(parts):
    model, tokens, _ = parts()
    before = {name: one.clone() for name, one in model.encoder.state_dict().items()}
    features = feature_set(model, tokens, Silent())
    optimizer = optimizer_of(model, 1e-2)
    target = torch.from_numpy(tokens.truth).long()
    random = np.random.default_rng(0)
    began = time.process_time()
    model.train()
    for _ in range(100):
        rows = random.permutation(64)[:32]
        logits = model.from_states(*features.batch(rows, model.device))
        optimizer.zero_grad()
        functional.cross_entropy(logits, target[rows]).backward()
        optimizer.step()
    assert time.process_time() - began < 20
    found = model.eval().from_states(*features.batch(range(64), model.device)).argmax(1)
    assert (found == target).float().mean() > 0.9
    after = model.encoder.state_dict()
    assert all(after[name].equal(one) for name, one in before.items())
