"""Words that are kept become what the library makes of the whole text."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

import pipework.text.word_cache
from pipework.data.examples import Example
from pipework.data.readers import numbered_lines
from pipework.errors import InputError
from pipework.text.encoding import TextEncoder
from pipework.text.word_cache import LONGEST, NEW, Frame, Words, separable

# Letters that fold, that decompose and that are several; marks; what is space for some and not for
# others; what is deleted; Chinese, as BERT knows it and beyond; halves of words.
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
    """A WordPiece tokenizer as BERT's that knows all signs, and some words of two."""
    letters = sorted({letter for sign in SIGNS for letter in sign if not letter.isspace()})
    folded = sorted({low for letter in letters for low in letter.lower()} | {"s", "i", "e"})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##ing", *letters]
    words += [one for one in folded if one not in words] + [f"##{one}" for one in folded]
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
LIBRARY = {name: bert(**normal) for name, normal in KINDS.items()}
KEPT = {name: Words(tokenizer) for name, tokenizer in LIBRARY.items()}


def by_library(tokenizer, texts):
    return [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_texts_of_any_signs_become_what_the_library_makes_of_them(kind, texts):
    assert separable(LIBRARY[kind])
    expected = by_library(LIBRARY[kind], texts)
    for words in (Words(LIBRARY[kind]), KEPT[kind]):
        for _ in range(2):  # as they come, and as they are kept
            assert [ids.tolist() for ids in words.ids(texts)] == expected


@pytest.mark.parametrize("max_length", [2, 3, 4, 9, 64])
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_texts_are_cut_and_framed_as_the_library_does_it(max_length, text):
    library = bert()
    library.enable_truncation(max_length)
    expected = library.encode(text)
    (found,) = encoder(max_length).encode([Example(text=text)])
    assert found.ids.tolist() == expected.ids
    assert found.type_ids.tolist() == expected.type_ids
    assert (found.ids.dtype, found.type_ids.dtype) == (np.int32, np.int8)


@given(text=TEXTS, pair=TEXTS)
@settings(max_examples=100, deadline=None)
def test_pairs_that_fit_are_framed_as_the_library_does_it(text, pair):
    expected = LIBRARY["uncased"].encode(text, pair)
    (found,) = encoder(512).encode([Example(text=text, text_pair=pair)])
    assert found.ids.tolist() == expected.ids
    assert found.type_ids.tolist() == expected.type_ids


@cache
def encoder(max_length):
    return TextEncoder(bert(), max_length=max_length, type_ids=True)


class Counting:
    """A tokenizer that notes what it is asked."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.asked = []

    def encode_batch_fast(self, texts, **settings):
        self.asked.append([*texts])
        return self._tokenizer.encode_batch_fast(texts, **settings)


def test_a_word_is_tokenised_once():
    library = Counting(LIBRARY["uncased"])
    words = Words(library)
    words.ids(["the cat", "the  cat sat"])
    assert sorted(word for asked in library.asked for word in asked) == ["", "cat", "sat", "the"]
    library.asked.clear()
    words.ids(["the the sat", "cat", ""])
    assert library.asked == []


def test_a_character_of_chinese_is_a_word_beside_whatever_stands():
    library = Counting(LIBRARY["uncased"])
    words = Words(library)
    words.ids(["京", "北", "a"])
    library.asked.clear()
    assert [ids.tolist() for ids in words.ids(["北京a京 a"])] == by_library(
        LIBRARY["uncased"], ["北京a京 a"]
    )
    assert library.asked == []


def test_few_words_are_learned_of_a_text_and_no_long_one():
    library = Counting(LIBRARY["uncased"])
    words = Words(library)
    many, long = " ".join("abcdefgh"), "a" * (LONGEST + 1)
    expected = by_library(LIBRARY["uncased"], [many, long])
    assert [ids.tolist() for ids in words.ids([many])] == expected[:1]
    (asked,) = library.asked
    assert len(asked) == NEW + 1
    assert asked[-1] == many
    for _ in range(2):
        library.asked.clear()
        assert [ids.tolist() for ids in words.ids([long])] == expected[1:]
        assert library.asked == [[long]]


def test_no_more_words_are_kept_than_is_set(monkeypatch):
    monkeypatch.setattr(pipework.text.word_cache, "MOST", 10)
    library = Counting(LIBRARY["uncased"])
    words = Words(library)
    texts = [f"a{number} b{number} the" for number in range(12)]
    expected = by_library(LIBRARY["uncased"], texts)
    assert [words.ids([text])[0].tolist() for text in texts] == expected
    library.asked.clear()
    words.ids(texts[-1:])
    assert library.asked == []
    assert words.ids(texts[:1])[0].tolist() == expected[0]
    assert {"a0", "b0"} <= {*library.asked[0]}


def test_no_more_words_of_one_call_are_kept_either(monkeypatch):
    monkeypatch.setattr(pipework.text.word_cache, "MOST", 10)
    library = Counting(LIBRARY["uncased"])
    words, texts = Words(library), [f"a{number}" for number in range(24)]
    expected = by_library(LIBRARY["uncased"], texts)
    for asked in (24, 14):  # of which ten are kept
        assert [ids.tolist() for ids in words.ids(texts)] == expected
        assert [len(one) for one in library.asked] == [asked]
        library.asked.clear()


def test_threads_share_words_while_they_are_given_up(monkeypatch):
    monkeypatch.setattr(pipework.text.word_cache, "MOST", 12)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    words, texts = Words(LIBRARY["uncased"]), [f"a{n % 7} b{n % 5} the c{n}" for n in range(60)]
    expected = by_library(LIBRARY["uncased"], texts)
    start = threading.Barrier(4)

    def ask(turn):
        start.wait()
        for _ in range(20):
            for place in range(turn, 60, 4):
                assert words.ids([texts[place]])[0].tolist() == expected[place]

    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(ask, turn) for turn in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(before)


def test_a_lone_surrogate_is_told_and_harms_no_later_text():
    for text in ("a \ud800", "\ud800" * (LONGEST + 1)):
        with pytest.raises(InputError, match="lone surrogate"):
            encoder(16).encode([Example(text=text)])
    assert encoder(16).encode([Example(text="a the")])[0].ids.tolist()[0] == 2


def test_a_template_that_has_the_text_twice_is_the_library_s():
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A $A [SEP]", special_tokens=[("[SEP]", 3)]
    )
    assert Frame.of(tokenizer) is None
    (found,) = TextEncoder(tokenizer, max_length=16, type_ids=True).encode([Example(text="the")])
    assert found.ids.tolist() == [5, 5, 3]


def changed(change):
    tokenizer = bert()
    change(tokenizer)
    return tokenizer


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.add_tokens([AddedToken("the cat", normalized=False)]),
        lambda one: setattr(one, "encode_special_tokens", False),
        lambda one: setattr(one, "normalizer", normalizers.Lowercase()),
        lambda one: setattr(
            one, "normalizer", normalizers.BertNormalizer(handle_chinese_chars=False)
        ),
        lambda one: setattr(one, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda one: setattr(one, "model", models.BPE()),
    ],
    ids=["added words", "special words", "normalizer", "chinese", "pre-tokenizer", "model"],
)
def test_where_a_word_may_depend_on_its_neighbours_none_is_kept(change):
    assert separable(bert())
    assert not separable(changed(change))


def test_an_added_word_is_found_across_a_space():
    tokenizer = changed(lambda one: one.add_tokens([AddedToken("the cat", normalized=False)]))
    one = TextEncoder(tokenizer, max_length=16, type_ids=True)
    (found,) = one.encode([Example(text="the cat")])
    assert found.ids.tolist() == [2, tokenizer.token_to_id("the cat"), 3]


def test_what_stands_around_a_text_is_seen():
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:1 [SEP] [CLS]:2", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    ids, type_ids = Frame.of(tokenizer).around(np.array([7, 8, 9], np.int32), 4)
    assert (ids.tolist(), type_ids.tolist()) == ([7, 8, 3, 2], [1, 1, 0, 2])


@pytest.mark.parametrize(
    ("vocabulary", "file", "column"),
    [
        ("bert-base-uncased", "sst2/dev.tsv", 0),
        ("bert-base-uncased", "mrpc/msr_paraphrase_test.txt", 3),
        ("bert-base-cased", "stsb/sts-test.tsv", 5),
        ("bert-base-chinese", "thucnews_headlines/dev.txt", 0),
        ("bert-base-chinese", "mrpc/msr_paraphrase_test.txt", 4),
    ],
)
def test_real_texts_become_what_the_library_makes_of_them(shared_data, vocabulary, file, column):
    listed = numbered_lines(shared_data / "vocabs_configs" / f"{vocabulary}.vocab.txt")
    words = {word: number - 1 for number, word in listed}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocabulary != "bert-base-cased")
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.encode_special_tokens = True
    rows = [line.split("\t") for _, line in numbered_lines(shared_data / file)]
    texts = [row[column] for row in rows if len(row) > column]
    assert len(texts) > 800
    kept, found = Words(tokenizer), []
    for start in range(0, len(texts), 32):
        found += kept.ids(texts[start : start + 32])
    assert [ids.tolist() for ids in found] == by_library(tokenizer, texts)
