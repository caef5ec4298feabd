"""Texts encoded from cached words are equal to the library's encoding of the whole text."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

import pipework.text.word_cache
from pipework.data.examples import Example
from pipework.data.readers import numbered_lines
from pipework.errors import InputError
from pipework.text.encoding import TextEncoder
from pipework.text.word_cache import MAX_WORD_LENGTH, NEW_WORDS, TextTemplate, WordCache, separable

# Letters with case folding, decomposition or ligatures; combining marks; characters that only some
# libraries treat as space; deleted characters; Chinese in and outside of BERT's ranges; word parts.
SIGNS = [
    *"aAzZéÉß\u017f\u03c3Σς\u0130\u0131ŀ\ufb01",
    *"\u0301\u0308\u0327\u0345\u1100\u1161\u11a8",
    *" \t\n\r\x0b\x0c\x1c\x85\xa0\u2028\u3000\u200b\ufeff",
    *"\x00\x01\x7f\ufffd\u00ad",
    *".,-'#[]$`¿«。\uff0c",
    *"北京\u4e00\u9fff\u3400\uf900\U00020000かカ한",
    *"😀🇩🏽\u200d\ue000",
    *["[SEP]", "[MASK]", "##", "the ", "ing", "北京 ", "  "],
]
TEXTS = st.lists(st.sampled_from(SIGNS), max_size=24).map("".join)


def bert(**normal):
    """A BERT tokenizer with all signs and some longer words in its vocabulary."""
    letters = sorted({letter for sign in SIGNS for letter in sign if not letter.isspace()})
    folded = sorted({low for letter in letters for low in letter.lower()} | {"s", "i", "e"})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##ing", *letters]
    words += [letter for letter in folded if letter not in words]
    words += [f"##{letter}" for letter in folded]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normal)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.encode_special_tokens = True
    return tokenizer


KINDS = {
    "uncased": {},
    "cased": {"lowercase": False},
    "accents": {"strip_accents": False},
    "cased without accents": {"lowercase": False, "strip_accents": True},
    "not cleaned": {"clean_text": False},
}
SOME_KINDS = [
    pytest.param(name, marks=() if name in {"uncased", "accents"} else pytest.mark.slow)
    for name in KINDS
]
LIBRARY = {name: bert(**normal) for name, normal in KINDS.items()}
CACHED = {name: WordCache(tokenizer) for name, tokenizer in LIBRARY.items()}


def by_library(tokenizer, texts):
    return [tokens.ids for tokens in tokenizer.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("kind", SOME_KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_text_is_tokenized_as_by_the_library(kind, texts):
    assert separable(LIBRARY[kind])
    expected = by_library(LIBRARY[kind], texts)
    for words in (WordCache(LIBRARY[kind]), CACHED[kind]):
        for _ in range(2):  # first without, then with cached words
            assert [ids.tolist() for ids in words.ids(texts)] == expected


@pytest.mark.parametrize("max_length", [2, 3, 4, 9, 64])
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_truncation_and_special_tokens_are_those_of_the_library(max_length, text):
    library = bert()
    library.enable_truncation(max_length)
    expected = library.encode(text)
    (encoding,) = encoder(max_length).encode([Example(text=text)])
    assert encoding.ids.tolist() == expected.ids
    assert encoding.type_ids.tolist() == expected.type_ids
    assert (encoding.ids.dtype, encoding.type_ids.dtype) == (np.int32, np.int8)


@given(text=TEXTS, pair=TEXTS)
@settings(max_examples=100, deadline=None)
def test_pairs_have_the_special_tokens_of_the_library(text, pair):
    expected = LIBRARY["uncased"].encode(text, pair)
    (encoding,) = encoder(512).encode([Example(text=text, text_pair=pair)])
    assert encoding.ids.tolist() == expected.ids
    assert encoding.type_ids.tolist() == expected.type_ids


@cache
def encoder(max_length):
    return TextEncoder(bert(), max_length=max_length, type_ids=True)


class Counting:
    """A tokenizer that records its calls."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.calls = []

    def encode_batch_fast(self, texts, **settings):
        self.calls.append([*texts])
        return self._tokenizer.encode_batch_fast(texts, **settings)


LONG_TEXTS = st.lists(st.tuples(TEXTS, st.integers(1, 40)), max_size=6).map(
    lambda parts: "".join(text * times for text, times in parts)
)


@pytest.mark.parametrize("kind", SOME_KINDS)
@given(texts=st.lists(LONG_TEXTS, min_size=1, max_size=3), count=st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_the_first_tokens_are_those_of_the_whole_text(kind, texts, count):
    expected = by_library(LIBRARY[kind], texts)
    found = [ids.tolist() for ids in CACHED[kind].first_ids(texts, count)]
    assert [ids[:count] for ids in found] == [ids[:count] for ids in expected]
    for ids, whole in zip(found, expected, strict=True):
        assert ids == whole[: len(ids)]
        assert len(ids) >= min(count, len(whole))


@pytest.mark.parametrize("text", ["the cat sat " * 8000, "北京 a" * 20_000, " " * 90_000 + "the"])
def test_only_the_head_of_a_long_text_is_tokenized(text):
    library = Counting(LIBRARY["uncased"])
    (ids,) = WordCache(library).first_ids([text], 20)
    assert ids[:20].tolist() == by_library(LIBRARY["uncased"], [text])[0][:20]
    sizes = [len(part) for call in library.calls for part in call]
    assert sum(sizes) < 2000 or text[0] == " "  # here the first word is at the end


def test_a_word_is_tokenized_once():
    library = Counting(LIBRARY["uncased"])
    words = WordCache(library)
    words.ids(["the cat", "the  cat sat"])
    assert sorted(word for call in library.calls for word in call) == ["", "cat", "sat", "the"]
    library.calls.clear()
    words.ids(["the the sat", "cat", ""])
    assert library.calls == []


def test_a_chinese_character_is_always_a_word():
    library = Counting(LIBRARY["uncased"])
    words = WordCache(library)
    words.ids(["京", "北", "a"])
    library.calls.clear()
    assert [ids.tolist() for ids in words.ids(["北京a京 a"])] == by_library(
        LIBRARY["uncased"], ["北京a京 a"]
    )
    assert library.calls == []


def test_only_a_few_short_words_of_a_text_are_cached():
    library = Counting(LIBRARY["uncased"])
    words = WordCache(library)
    many, long = " ".join("abcdefgh"), "a" * (MAX_WORD_LENGTH + 1)
    expected = by_library(LIBRARY["uncased"], [many, long])
    assert [ids.tolist() for ids in words.ids([many])] == expected[:1]
    (call,) = library.calls
    assert len(call) == NEW_WORDS + 1
    assert call[-1] == many
    for _ in range(2):
        library.calls.clear()
        assert [ids.tolist() for ids in words.ids([long])] == expected[1:]
        assert library.calls == [[long]]


def test_the_cache_does_not_exceed_its_maximum(monkeypatch):
    monkeypatch.setattr(pipework.text.word_cache, "MAX_WORDS", 10)
    library = Counting(LIBRARY["uncased"])
    words = WordCache(library)
    texts = [f"a{number} b{number} the" for number in range(12)]
    expected = by_library(LIBRARY["uncased"], texts)
    assert [words.ids([text])[0].tolist() for text in texts] == expected
    library.calls.clear()
    words.ids(texts[-1:])
    assert library.calls == []
    assert words.ids(texts[:1])[0].tolist() == expected[0]
    assert {"a0", "b0"} <= {*library.calls[0]}


def test_a_single_call_does_not_exceed_the_maximum(monkeypatch):
    monkeypatch.setattr(pipework.text.word_cache, "MAX_WORDS", 10)
    library = Counting(LIBRARY["uncased"])
    words, texts = WordCache(library), [f"a{number}" for number in range(24)]
    expected = by_library(LIBRARY["uncased"], texts)
    for requested in (24, 14):  # ten of which are cached
        assert [ids.tolist() for ids in words.ids(texts)] == expected
        assert [len(call) for call in library.calls] == [requested]
        library.calls.clear()


def test_threads_share_the_cache_while_it_is_replaced(monkeypatch):
    monkeypatch.setattr(pipework.text.word_cache, "MAX_WORDS", 12)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    words, texts = WordCache(LIBRARY["uncased"]), [f"a{n % 7} b{n % 5} the c{n}" for n in range(60)]
    expected = by_library(LIBRARY["uncased"], texts)
    start = threading.Barrier(4)

    def tokenize(turn):
        start.wait()
        for _ in range(20):
            for index in range(turn, 60, 4):
                assert words.ids([texts[index]])[0].tolist() == expected[index]

    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(tokenize, turn) for turn in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(before)


def test_a_lone_surrogate_is_reported_and_later_texts_are_encoded():
    for text in ("a \ud800", "\ud800" * (MAX_WORD_LENGTH + 1), "the " * 9999 + "\ud800"):
        with pytest.raises(InputError, match="lone surrogate"):
            encoder(16).encode([Example(text=text)])
    assert encoder(16).encode([Example(text="a the")])[0].ids.tolist()[0] == 2


def test_a_template_that_repeats_the_text_is_applied_by_the_library():
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A $A [SEP]", special_tokens=[("[SEP]", 3)]
    )
    assert TextTemplate.of(tokenizer) is None
    (encoding,) = TextEncoder(tokenizer, max_length=16, type_ids=True).encode([Example(text="the")])
    assert encoding.ids.tolist() == [5, 5, 3]


def changed(change):
    tokenizer = bert()
    change(tokenizer)
    return tokenizer


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: tokenizer.add_tokens([AddedToken("the cat", normalized=False)]),
        lambda tokenizer: setattr(tokenizer, "encode_special_tokens", False),
        lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.Lowercase()),
        lambda tokenizer: setattr(
            tokenizer, "normalizer", normalizers.BertNormalizer(handle_chinese_chars=False)
        ),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda tokenizer: setattr(tokenizer, "model", models.BPE()),
    ],
    ids=["added words", "special words", "normalizer", "chinese", "pre-tokenizer", "model"],
)
def test_a_tokenizer_whose_words_depend_on_each_other_is_not_separable(change):
    assert separable(bert())
    assert not separable(changed(change))


def test_an_added_token_may_contain_a_space():
    tokenizer = changed(lambda bert: bert.add_tokens([AddedToken("the cat", normalized=False)]))
    text_encoder = TextEncoder(tokenizer, max_length=16, type_ids=True)
    (encoding,) = text_encoder.encode([Example(text="the cat")])
    assert encoding.ids.tolist() == [2, tokenizer.token_to_id("the cat"), 3]


def test_a_template_is_derived_from_the_tokenizer():
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:1 [SEP] [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    ids, type_ids = TextTemplate.of(tokenizer).around(np.array([7, 8], np.int32))
    assert (ids.tolist(), type_ids.tolist()) == ([7, 8, 3, 2], [1, 1, 0, 2])


@pytest.mark.parametrize(
    ("vocabulary", "file", "column"),
    [
        ("bert-base-uncased", "sst2/dev.tsv", 0),
        ("bert-base-cased", "stsb/sts-test.tsv", 5),
        pytest.param(
            *("bert-base-chinese", "thucnews_headlines/dev.txt", 0), marks=pytest.mark.thorough
        ),
        *(
            pytest.param(vocabulary, "mrpc/msr_paraphrase_test.txt", column, marks=pytest.mark.slow)
            for vocabulary, column in (("bert-base-uncased", 3), ("bert-base-chinese", 4))
        ),
    ],
)
def test_real_texts_are_tokenized_as_by_the_library(shared_data, vocabulary, file, column):
    listed = numbered_lines(shared_data / "vocabs_configs" / f"{vocabulary}.vocab.txt")
    words = {word: number - 1 for number, word in listed}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocabulary != "bert-base-cased")
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.encode_special_tokens = True
    rows = [line.split("\t") for _, line in numbered_lines(shared_data / file)]
    texts = [row[column] for row in rows if len(row) > column]
    assert len(texts) > 800
    cache, result = WordCache(tokenizer), []
    for start in range(0, len(texts), 32):
        result += cache.ids(texts[start : start + 32])
    assert [ids.tolist() for ids in result] == by_library(tokenizer, texts)
