"""Bigram and trigram embeddings, within each text."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish, tiny
from pipework.data.examples import Example
from pipework.errors import ConfigError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import open_encoder
from pipework.train.config.model import Head, ModelSettings, Preset
from pipework.train.model.checkpoint_engine import open_reference
from pipework.train.model.classifier import build, open_checkpoint
from pipework.train.model.ngram_embeddings import NgramEmbedding, attach, hashed, start_id
from pipework.train.run import train
from tests.tiny_models import SampleRows, open_tiny

CLS, SEP = 2, 3


def embedding(buckets=997):
    torch.manual_seed(0)
    embed = NgramEmbedding(nn.Embedding(50, 16), buckets=buckets, start_id=CLS)
    nn.init.normal_(embed.ngrams.weight)
    return embed


def ids(*rows):
    return torch.tensor(rows)


def test_a_new_table_does_not_change_the_embeddings():
    tokens = nn.Embedding(50, 16)
    embed = NgramEmbedding(tokens, buckets=97, start_id=CLS)
    rows_BT = ids([CLS, 7, 8, 9, SEP])
    assert torch.equal(embed(rows_BT), tokens(rows_BT))
    assert embed.weight is tokens.weight


def test_an_embedding_depends_on_the_two_previous_tokens():
    embed = embedding()
    before_BT, after_BT = ids([CLS, 7, 8, 9, 10, SEP]), ids([CLS, 6, 8, 9, 10, SEP])
    changed_T = (embed(before_BT) != embed(after_BT)).any(dim=-1)[0]
    assert changed_T.tolist() == [False, True, True, True, False, False]


def test_packed_texts_are_embedded_as_each_alone():
    embed = embedding()
    first, second = [CLS, 7, 8, SEP], [CLS, 9, SEP]
    packed_TH = embed(ids([*first, *second, 0]))[0]
    torch.testing.assert_close(packed_TH[:4], embed(ids(first))[0])
    torch.testing.assert_close(packed_TH[4:7], embed(ids(second))[0])


def test_hashes_are_uniform():
    embed = embedding(buckets=256)
    pairs_BT = torch.cartesian_prod(torch.arange(4, 50), torch.arange(4, 50))
    hash_BT, inside_BT = hashed(pairs_BT, embed.keys, 2, 0, embed.buckets, embed.start_id)
    assert bool(inside_BT.all())
    counts = torch.bincount(hash_BT[:, 1], minlength=256)
    mean = len(pairs_BT) / 256
    assert len(counts) == 256
    assert float(((counts - mean) ** 2 / mean).sum()) < 2 * 256  # chi squared; 256 is expected


def test_the_order_of_a_bigram_matters():
    embed = embedding()
    one, other = embed(ids([CLS, 7, 8, SEP]))[0, 2], embed(ids([CLS, 8, 7, SEP]))[0, 1]
    ones, others = one - embed.weight[8], other - embed.weight[8]
    assert not torch.allclose(ones, others)


@pytest.mark.parametrize("head", [Head.LINEAR, Head.CNN])
def test_the_table_is_part_of_the_checkpoint(tmp_path, head):
    rows = SampleRows.of(EncoderFamily.BERT)
    settings = ModelSettings(preset=Preset.TINY, ngrams=500, head=head, max_length=40)
    model = build(settings, rows.tokenizer, rows.task).eval()
    nn.init.normal_(model.encoder.get_input_embeddings().ngrams.weight)
    model.save(tmp_path / "saved")
    again = open_checkpoint(tmp_path / "saved")
    batch_BT = ids([CLS, 7, 8, 9, SEP])
    inputs = {"input_ids": batch_BT, "attention_mask": torch.ones_like(batch_BT)}
    assert torch.equal(again(**inputs), model(**inputs))
    named = ModelSettings(name=str(tmp_path / "saved"), max_length=40)
    table = build(named, rows.tokenizer, rows.task).encoder.get_input_embeddings().ngrams
    assert torch.equal(table.weight, model.encoder.get_input_embeddings().ngrams.weight)
    with pytest.raises(ConfigError, match="is 7, but the checkpoint has 500 buckets"):
        build(named.model_copy(update={"ngrams": 7}), rows.tokenizer, rows.task)


def test_a_table_can_be_added_to_a_published_checkpoint(tmp_path):
    rows = SampleRows.of(EncoderFamily.ALBERT)
    publish(EncoderFamily.ALBERT, rows.tokenizer, tmp_path)
    settings = ModelSettings(name=str(tmp_path), ngrams=500, max_length=40)
    model = build(settings, rows.tokenizer, rows.task)
    assert isinstance(model.encoder.get_input_embeddings(), NgramEmbedding)
    assert any("ngrams" in name for name, _ in model.named_parameters())
    embedding_weights = {id(weight) for weight in model.layers()[0]}
    assert id(model.encoder.get_input_embeddings().ngrams.weight) in embedding_weights
    assert open_tiny(rows, tmp_path, Head.LINEAR)  # still opens without n-grams


def test_a_family_without_a_start_token_is_refused():
    model = AutoModel.from_config(tiny(EncoderFamily.XLNET, 50))
    with pytest.raises(ConfigError, match="xlnet does not support n-gram embeddings"):
        attach(model, buckets=10, start_id=CLS)


def test_the_start_token_is_read_from_the_tokenizer():
    rows = SampleRows.of(EncoderFamily.BERT)
    assert start_id(rows.tokenizer) == rows.tokenizer.token_to_id("[CLS]")


def test_a_run_trains_its_table_and_its_checkpoint_gives_the_same_logits(small, tmp_path):
    result = train(
        small("train.max_steps=60", "model.ngrams=300"), tmp_path / "run", NullProgress()
    )
    assert result.data.metrics["dev"].scores["accuracy"] == 1
    manifest = read_manifest(tmp_path / "run")
    examples = [Example(text=f"good thing number {n}") for n in range(9)]
    encodings = open_encoder(tmp_path / "run", manifest).encode(examples)
    engine = open_reference(tmp_path / "run", manifest)
    together, alone = engine.infer(encodings).values, engine.alone().infer(encodings).values
    np.testing.assert_allclose(together, alone, atol=1e-5)
    model = open_checkpoint(tmp_path / "run" / "checkpoint")
    assert float(model.encoder.get_input_embeddings().ngrams.weight.detach().abs().max()) > 0
