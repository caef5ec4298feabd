"""The characters of tokens, for tokenizers of each kind and characters of many kinds."""

import random

import numpy as np
import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pipework.data.examples import Example
from pipework.tasks.kinds import Metric, Words
from pipework.tasks.outputs import NO_PLACE
from pipework.tasks.spans import Span, bio_tags
from pipework.tasks.tokens import TokenTask
from pipework.tasks.windows import Windows
from pipework.text.encoding import TextEncoder

TASK = TokenTask(labels=bio_tags(("X",)), metric=Metric.MICRO_F1)
WORDS = (
    *(
        "Ana",
        "Zürich",
        "naïve",
        "e\u0301te\u0301",
        "東京",
        "大学",
        "กรุงเทพ",
        "हिन्दी",
        "Việt",
        "ﬁne",
    ),
    *(
        "👩\u200d👩\u200d👧",
        "❤\ufe0f",
        "😀",
        "🇩🇪",
        "a\u200bb",
        "x\u00adyz",
        "½",
        "İstanbul",
        "ǅ",
        "שָׁלוֹם",
    ),
)
BLANKS = (" ", "  ", "\t", "\r\n", "\u00a0", "\u3000", "\n\n")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def trained(model, trainer, normalizer, pre_tokenizer, decoder=None):
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def wordpiece():
    return trained(
        models.WordPiece(unk_token="[UNK]"),
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False),
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )


def byte_level():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(
        models.BPE(),
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
        None,
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False),
    )


def unigram():
    return trained(
        models.Unigram(),
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
        ),
        normalizers.NFKC(),
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
    )


KINDS = {"wordpiece": wordpiece, "byte level": byte_level, "unigram": unigram}


@pytest.fixture(scope="module", params=KINDS)
def encoder(request):
    return TextEncoder(KINDS[request.param](), max_length=200, type_ids=False)


def texts(rows):
    """Return random texts with the places of their words."""
    generator = random.Random(0)
    for number in range(rows):
        text, places = "\ufeff" if number % 5 == 0 else "", []
        for word in generator.choices(WORDS, k=generator.randint(1, 6)):
            places.append((len(text), len(text) + len(word)))
            text += word + generator.choice(BLANKS)
        yield text, places


def test_the_tokens_are_those_of_the_encoding(encoder):
    examples = [Example(text=text) for text, _ in texts(200)]
    for encoding, places_T2 in zip(encoder.encode(examples), encoder.places(examples), strict=True):
        assert len(encoding) == len(places_T2)
        assert (places_T2[[0, -1], 0] == NO_PLACE).all()
        located = places_T2[places_T2[:, 0] != NO_PLACE]
        assert (located[1:, 0] >= located[:-1, 1]).all()  # also the bytes of a character


def test_the_span_of_each_word_is_found(encoder):
    lost = words = 0
    for text, places in texts(200):
        spans = tuple(Span(start, end, "X") for start, end in places)
        (places_T2,) = encoder.places([Example(text=text)])
        (row,) = TASK.token_truth([("f:1", spans)], [places_T2], 200)
        lost += int(row[-1])
        words += len(spans)
        tags = TASK.scheme.spans(
            row[: len(places_T2)].astype(np.int64), np.zeros(len(places_T2), int)
        )
        for first, last in zip(tags.first, tags.last, strict=True):
            found = text[places_T2[first, 0] : places_T2[last, 1]]
            assert found == found.strip()
            assert any(found in text[start:end] for start, end in places)
    assert lost == 0
    assert words > 500


def test_the_first_token_of_a_word_has_its_characters(encoder):
    text = "Zürich-Anna's e\u0301te\u0301, 東京 กรุ İstanbul2"
    places = [
        encoder.places([Example(text=text)], words)[0] for words in (Words.TOKENS, Words.LETTERS)
    ]
    tokens, words = ([(a, b) for a, b in one.tolist() if a != NO_PLACE] for one in places)
    found = [text[start:end] for start, end in words]
    assert len(words) < len(tokens)
    assert found[0] == "Zürich"
    assert "Anna" in found
    assert any(word.startswith("İstanbul") for word in found)
    assert not any("東京" in word and len(word) > 2 for word in found)
    # All characters of all tokens are still in the place of a token.
    assert {*"".join(text[a:b] for a, b in tokens)} <= {*"".join(found)}


def test_each_token_has_its_place_in_one_window(encoder):
    windows, short = Windows(stride=5), encoder.with_max_length(16)
    examples = [Example(text=text) for text, _ in texts(100)] + [Example(text="")]
    long = [Example(text=" ".join(row.text for row in examples[:20]))]
    for words in Words:
        for example in examples + long:
            (found,) = short.window_places([example], words, windows)
            (whole,) = encoder.with_max_length(10_000).places([example], words)
            (first,) = short.encode_windows([example], windows)
            sizes = [len(window) for window in (first, *first.others)]
            assert len(found) == sum(sizes)
            np.testing.assert_array_equal(
                found[found[:, 0] != NO_PLACE], whole[whole[:, 0] != NO_PLACE]
            )
            if words is Words.TOKENS and len(sizes) > 1:
                # Two tokens are special; the neighbours of each end share 5 tokens or more.
                for number, window in enumerate(np.split(found, np.cumsum(sizes)[:-1])):
                    located = np.flatnonzero(window[:, 0] != NO_PLACE)
                    assert number == 0 or located[0] >= 1 + 2
                    assert number == len(sizes) - 1 or located[-1] <= len(window) - 2 - 2


def test_no_span_is_divided_between_windows(encoder):
    windows, short = Windows(stride=6), encoder.with_max_length(16)
    text = " ".join(text for text, _ in texts(30))
    (first,) = short.encode_windows([Example(text=text)], windows)
    rows = 16 * (1 + len(first.others))
    generator = np.random.default_rng(0)
    for _ in range(20):
        # Spans of up to four tokens, which neighbouring windows find at different places.
        inside = np.repeat(generator.random(rows // 2 + 1) < 0.4, 2)[:rows]
        (found,) = short.window_places([Example(text=text)], Words.TOKENS, windows, [inside])
        (whole,) = encoder.with_max_length(10_000).places([Example(text=text)])
        np.testing.assert_array_equal(
            found[found[:, 0] != NO_PLACE], whole[whole[:, 0] != NO_PLACE]
        )
    nothing = np.zeros(rows, np.bool_)
    (middle,) = short.window_places([Example(text=text)], Words.TOKENS, windows, [nothing])
    # Both windows of the first seam may have a span over it: another place is chosen.
    inside = nothing.copy()
    inside[(last := last_token(middle)) : last + 3] = True
    (moved,) = short.window_places([Example(text=text)], Words.TOKENS, windows, [inside])
    assert last_token(moved) != last


def last_token(places):
    """Return the last row of the first window with a place."""
    return int(np.flatnonzero(places[:16, 0] != NO_PLACE)[-1])


def test_white_space_has_no_place(encoder):
    text = "Ana\n\nOslo \r\n 東京"
    for words in Words:
        (places_T2,) = encoder.places([Example(text=text)], words)
        located = places_T2[places_T2[:, 0] != NO_PLACE]
        assert (located[:, 0] < located[:, 1]).all()
        found = [text[start:end] for start, end in located.tolist()]
        assert all(part == part.strip() for part in found)


def test_a_truncated_text_and_an_empty_text(encoder):
    short = encoder.with_max_length(4)
    examples = [Example(text=" ".join(WORDS)), Example(text="")]
    for encoding, places_T2 in zip(short.encode(examples), short.places(examples), strict=True):
        assert len(encoding) == len(places_T2)
