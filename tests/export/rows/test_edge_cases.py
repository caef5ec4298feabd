"""Edge cases, with the tokenizer of a small vocabulary."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn

from pipework.data.examples import Example
from pipework.export.rows.edge_cases import EDGE_TEXTS, SPREAD_ROWS, WordRows, edge_case_rows
from pipework.text.encoding import TextEncoder
from pipework.train.model.ngram_embeddings import NgramEmbedding, NgramTable

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "rain", "sun", "$", "#")
MAX_LENGTH = 40
FEW = [Example(text=f"rain {'sun ' * n}") for n in range(5)]
PAIRS = [Example(text="rain " * n, text_pair="sun " * (7 - n)) for n in range(1, 6)]
MARKED = [Example(text="rain sun rain", entities=((0, 4), (5, 8))) for _ in range(3)]


def encoder_of(words, special=("[CLS]", "[SEP]", "[UNK]")):
    """Return an encoder with these special tokens and words."""
    ids = {word: index for index, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return TextEncoder(tokenizer, max_length=MAX_LENGTH, type_ids=True)


@pytest.fixture
def encoder():
    return encoder_of(WORDS, special=())


def by_name(rows):
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row.encoding for row in rows}


@pytest.mark.parametrize("examples", [FEW, PAIRS, MARKED], ids=["texts", "pairs", "entities"])
def test_all_edge_texts_and_all_lengths_are_checked(encoder, examples):
    found = by_name(edge_case_rows(encoder, examples))
    assert {*EDGE_TEXTS, "empty text", "truncated text"} <= found.keys()
    lengths = {len(encoding) for encoding in found.values()}
    assert max(lengths) == len(found["truncated text"]) == MAX_LENGTH
    cut = {name: len(encoding) for name, encoding in found.items() if name.startswith("text cut")}
    assert all(name == f"text cut to {length}" for name, length in cut.items())
    assert {8, 16, 32, MAX_LENGTH} <= {*cut.values()}


def test_the_shortest_cut_has_one_token_of_text(encoder):
    found = by_name(edge_case_rows(encoder, FEW))
    assert len(found["empty text"]) == 2
    assert found["text cut to 3"].ids.tolist() == [2, 4, 3]


def test_pairs_are_checked_with_one_empty_side(encoder):
    found = by_name(edge_case_rows(encoder, PAIRS))
    first, second = found["first text empty"], found["second text empty"]
    assert first.ids.tolist() == [2, 3, *[5] * 6, 3]
    assert second.ids.tolist() == [2, 4, 3, 3]
    assert np.bincount(found["truncated text"].type_ids).min() > MAX_LENGTH / 3
    assert "first text empty" not in by_name(edge_case_rows(encoder, FEW))


def test_inputs_of_a_model_of_entities_have_entities(encoder):
    for name, encoding in by_name(edge_case_rows(encoder, MARKED)).items():
        assert encoding.entity_spans is not None, name
        for start, end in encoding.entity_spans:
            assert 0 <= start <= end <= len(encoding), name


def test_the_entities_of_a_truncated_text_are_far_from_each_other(encoder):
    found = by_name(edge_case_rows(encoder, MARKED))
    (start1, end1), (start2, end2) = found["truncated text"].entity_spans
    assert start1 < end1 < start2 < end2
    assert start2 - end1 > MAX_LENGTH / 2


def test_real_rows_are_sampled_evenly_with_their_numbers(encoder):
    examples = [Example(text="rain") for _ in range(1000)]
    numbers = [10 * index for index in range(1, 1001)]
    found = by_name(edge_case_rows(encoder, examples, numbers))
    rows = sorted(int(name.split()[-1]) for name in found if name.startswith("dev row "))
    assert len(rows) == SPREAD_ROWS
    assert (rows[0], rows[-1]) == (10, 10_000)
    steps = {after - before for before, after in pairwise(rows)}
    assert max(steps) - min(steps) <= 10


def test_long_and_short_inputs_alternate(encoder):
    lengths = [len(row.encoding) for row in edge_case_rows(encoder, FEW)]
    shortest, longest = lengths[0::2], lengths[1::2]
    assert shortest == sorted(shortest)
    assert longest == sorted(longest, reverse=True)
    assert lengths[:2] == [min(lengths), max(lengths)] == [2, MAX_LENGTH]


def test_rows_of_the_vocabulary_have_every_token_once_per_pass():
    many = encoder_of([f"w{n}" for n in range(100)])
    texts = [row.encoding for row in WordRows.of(many, FEW[0]).vocabulary()]
    assert [len(encoding) for encoding in texts] == [MAX_LENGTH] * 3
    inner = np.concatenate([encoding.ids[1:-1] for encoding in texts])
    assert {*inner.tolist()} == {*range(2, 103)}
    assert all((encoding.ids[0], encoding.ids[-1]) == (0, 1) for encoding in texts)
    pairs = [row.encoding for row in WordRows.of(many, PAIRS[0]).vocabulary()]
    for encoding in pairs:
        (middle,) = np.flatnonzero(encoding.ids[:-1] == 1)
        assert encoding.type_ids.tolist() == [0] * (middle + 1) + [1] * (MAX_LENGTH - middle - 1)
        assert abs(2 * middle - MAX_LENGTH) <= 2


def test_a_small_vocabulary_is_repeated_up_to_the_limit(encoder):
    (row,) = WordRows.of(encoder, FEW[0]).vocabulary()
    assert len(row.encoding) == MAX_LENGTH
    assert {*row.encoding.ids.tolist()} == {*range(len(WORDS))}


@pytest.mark.parametrize("examples", [FEW, PAIRS], ids=["texts", "pairs"])
def test_every_bucket_of_an_ngram_table_is_read(examples):
    many = encoder_of([f"w{n}" for n in range(300)])
    embed = NgramEmbedding(nn.Embedding(303, 8), buckets=2000, start_id=0)
    table = NgramTable(keys_KV=embed.keys, buckets=2000, start_id=0)
    words = WordRows.of(many, examples[0])
    vocabulary = words.vocabulary()
    rows, unread = words.ngrams(table, vocabulary)
    assert unread == 0
    assert len(rows) < 2000 / MAX_LENGTH
    read = set()
    for row in (*vocabulary, *rows):
        assert len(row.encoding) == MAX_LENGTH
        read |= read_by(embed, row.encoding)
    assert read == set(range(2000))
    again, _ = words.ngrams(table, vocabulary)
    assert all(map(np.array_equal, *([row.encoding.ids for row in both] for both in (rows, again))))


def read_by(embed, encoding):
    """Return the buckets that the model reads: those whose vectors have a gradient."""
    embed.zero_grad()
    nn.init.ones_(embed.ngrams.weight)
    embed(torch.from_numpy(encoding.ids[None].astype(np.int64))).pow(2).sum().backward()
    return {*embed.ngrams.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()}


def test_buckets_that_no_text_reads_are_counted():
    few = encoder_of(["a", "b", "c"])
    embed = NgramEmbedding(nn.Embedding(6, 8), buckets=2000, start_id=0)
    table = NgramTable(keys_KV=embed.keys, buckets=2000, start_id=0)
    words = WordRows.of(few, FEW[0])
    rows, unread = words.ngrams(table, words.vocabulary())
    read = {bucket for row in rows for bucket in table.read_by(row.encoding.ids)}
    assert 2000 - 6**2 - 6**3 <= unread <= 2000 - len(read)


@pytest.mark.parametrize("examples", [FEW, PAIRS, MARKED], ids=["texts", "pairs", "entities"])
def test_inputs_of_every_length_and_of_one_token_have_tokens_of_the_rows(encoder, examples):
    rows = edge_case_rows(encoder, examples)
    words = WordRows.of(encoder, examples[0])
    lengths = words.lengths(rows)
    shortest = len(words.empty) + 1
    assert [len(row.encoding) for row in lengths] == [*range(shortest, MAX_LENGTH + 1)]
    single = [row.encoding for row in words.single(rows, 256)]
    assert {len(encoding) for encoding in single} == {shortest}
    read = {int(token) for row in rows for token in row.encoding.ids} & {*encoder.word_ids()}
    assert {int(encoding.ids[words.places[0]]) for encoding in single} == read


def test_above_512_tokens_the_lengths_are_spread(encoder):
    rows = edge_case_rows(encoder, FEW)
    words = WordRows.of(encoder.with_max_length(4000), FEW[0])
    lengths = [len(row.encoding) for row in words.lengths(rows)]
    assert lengths[:510] == [*range(3, 513)]
    assert lengths[-1] == 4000
    assert len(lengths) < 600


def test_a_model_without_room_for_a_token_has_no_such_inputs(encoder):
    words = WordRows.of(encoder.with_max_length(2), FEW[0])
    rows = edge_case_rows(encoder, FEW)
    assert (words.lengths(rows), words.single(rows, 256)) == ([], [])
