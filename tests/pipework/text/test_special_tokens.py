"""Pairs are truncated and joined as by the tokenizers library, without its cost."""

import random
import time

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pipework.data.examples import Example
from pipework.errors import ConfigError
from pipework.text.encoding import TextEncoder
from pipework.text.special_tokens import truncated_lengths

LETTERS = "abcdefgh"
SPECIAL = [("[CLS]", 0), ("[SEP]", 1)]
TEMPLATES = {
    "bert": processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=SPECIAL
    ),
    "roberta": processors.RobertaProcessing(("[SEP]", 1), ("[CLS]", 0)),
    "xlnet": processors.TemplateProcessing(
        single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=SPECIAL
    ),
}


def letters(template):
    words = {word: place for place, word in enumerate(["[CLS]", "[SEP]", "[UNK]", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = template
    return tokenizer


def text(words):
    return " ".join(random.Random(words).choices(LETTERS, k=words))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("max_length", [5, 8, 9, 16])
def test_pairs_of_any_lengths_are_encoded_as_by_the_library(template, max_length):
    library = letters(template)
    library.enable_truncation(max_length, strategy="longest_first")
    encoder = TextEncoder(letters(template), max_length=max_length, type_ids=True)
    pairs = [(text(first), text(second)) for first in range(15) for second in range(15)]
    encodings = encoder.encode([Example(text=first, text_pair=second) for first, second in pairs])
    for encoding, pair in zip(encodings, pairs, strict=True):
        expected = library.encode(*pair)
        assert encoding.ids.tolist() == expected.ids
        assert encoding.type_ids.tolist() == expected.type_ids


def test_single_texts_and_pairs_in_a_batch_keep_their_order():
    encoder = TextEncoder(letters(TEMPLATES["bert"]), max_length=16, type_ids=True)
    examples = [Example(text="a"), Example(text="b", text_pair="c"), Example(text="d")]
    batch = [encoding.ids.tolist() for encoding in encoder.encode(examples)]
    assert batch == [encoder.encode([example])[0].ids.tolist() for example in examples]
    assert [len(ids) for ids in batch] == [3, 5, 3]


def test_the_cost_of_a_long_pair_is_linear_in_its_length():
    encoder = TextEncoder(letters(TEMPLATES["bert"]), max_length=32, type_ids=True)
    long = text(4000)

    def seconds(example):
        start_s = time.perf_counter()
        encoder.encode([example])
        return time.perf_counter() - start_s

    single = min(seconds(Example(text=long)) for _ in range(5))
    pair = min(seconds(Example(text=long, text_pair=long)) for _ in range(5))
    assert pair < 20 * single  # 1,800 times with the library's truncation


@pytest.mark.parametrize(
    ("first", "second", "room", "lengths"),
    [
        (3, 4, 7, (3, 4)),
        (9, 2, 7, (5, 2)),
        (2, 9, 7, (2, 5)),
        (9, 9, 7, (3, 4)),
        (9, 8, 7, (4, 3)),
        (9, 9, 0, (0, 0)),
    ],
)
def test_the_longer_text_is_truncated_first(first, second, room, lengths):
    assert truncated_lengths(first, second, room) == lengths


@pytest.mark.parametrize("kind", ["byte level", "metaspace"])
def test_other_tokenizer_families_encode_pairs_as_the_library(kind):
    if kind == "metaspace":
        vocabulary = [("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in "აბგდ ")]
        tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    else:  # without an unknown token
        known = sorted({*pre_tokenizers.ByteLevel.alphabet()} - {*"abc123"})
        tokens = {"<s>": 0, "</s>": 1, **{letter: n + 2 for n, letter in enumerate(known)}}
        tokenizer = Tokenizer(models.BPE(tokens, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    library = Tokenizer.from_str(tokenizer.to_str())
    library.enable_truncation(9, strategy="longest_first")
    encoder = TextEncoder(tokenizer, max_length=9, type_ids=True)
    for first, second in (("აბ გდ", "გ"), ("ა", "ბგდ ბგდ ბგდ"), ("აბგდ " * 9, "გდ " * 9)):
        (encoding,) = encoder.encode([Example(text=first, text_pair=second)])
        expected = library.encode(first, second)
        assert expected.ids
        assert encoding.ids.tolist() == expected.ids
        assert encoding.type_ids.tolist() == expected.type_ids


def test_a_tokenizer_that_puts_the_second_text_first_is_rejected():
    turned = processors.TemplateProcessing(single="$A", pair="$B:1 $A", special_tokens=[])
    encoder = TextEncoder(letters(turned), max_length=16, type_ids=True)
    with pytest.raises(ConfigError, match="the first before the second"):
        encoder.encode([Example(text="a", text_pair="b")])
