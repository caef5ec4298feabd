import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from pipework.data.entities import parse_marked_text
from pipework.data.examples import Example, Source
from pipework.data.readers import numbered_lines
from pipework.errors import ConfigError, InputError, RunFolderError
from pipework.run_folder.read_options import Reading
from pipework.tasks.windows import Windows
from pipework.text.encoding import TextEncoder, all_windows, mark_entities

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]


def letters_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=64)  # settings that a checkpoint's tokenizer may have
    tokenizer.enable_truncation(4)
    return tokenizer


def encoder(max_length=16, type_ids=True):
    return TextEncoder(letters_tokenizer(), max_length=max_length, type_ids=type_ids)


def test_an_encoding_is_not_padded_and_has_the_documented_types():
    (encoding,) = encoder().encode([Example(text="a B c")])
    assert encoding.ids.tolist() == [2, 4, 5, 6, 3]
    assert encoding.ids.dtype == np.int32
    assert encoding.type_ids.dtype == np.int8
    assert len(encoding) == 5


def test_the_longer_first_text_of_a_pair_is_truncated():
    (encoding,) = encoder(max_length=8).encode([Example(text="a b c d e f", text_pair="g h")])
    assert encoding.ids.tolist() == [2, 4, 5, 6, 3, 10, 11, 3]
    assert encoding.type_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_the_longer_second_text_of_a_pair_is_truncated():
    (encoding,) = encoder(max_length=8).encode([Example(text="g h", text_pair="a b c d e f")])
    assert encoding.ids.tolist() == [2, 10, 11, 3, 4, 5, 6, 3]


def test_a_special_token_inside_a_text_is_ordinary_text():
    (plain,) = encoder().encode([Example(text="a [SEP] b")])
    assert plain.ids.tolist().count(3) == 1


def test_an_empty_text_is_encoded_as_special_tokens():
    (encoding,) = encoder().encode([Example(text="")])
    assert encoding.ids.tolist() == [2, 3]


def test_a_family_without_type_ids_has_none():
    assert encoder(type_ids=False).encode([Example(text="a")])[0].type_ids is None


def test_an_encoding_does_not_depend_on_the_rest_of_the_batch():
    texts = [Example(text=" ".join("abcdefgh"[: n % 9])) for n in range(40)]
    letters = encoder()
    batch = letters.encode(texts)
    for text, encoding in zip(texts, batch, strict=True):
        assert letters.encode([text])[0].ids.tolist() == encoding.ids.tolist()


def test_a_lone_surrogate_is_reported():
    with pytest.raises(InputError, match="lone surrogate"):
        encoder().encode([Example(text="a \ud800")])


def test_with_max_length_does_not_change_the_original_encoder():
    letters = encoder(max_length=16)
    assert len(letters.with_max_length(4).encode([Example(text="a b c d e")])[0]) == 4
    assert len(letters.encode([Example(text="a b c d e")])[0]) == 7


def test_an_invalid_tokenizer_file_is_reported(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(RunFolderError, match=r"tokenizer\.json is not a tokenizer"):
        TextEncoder.open(path, max_length=8, type_ids=False)


def bert(max_length=64, extra=()):
    """A BERT tokenizer with single characters and a few words."""
    letters = [chr(code) for code in range(33, 127)] + [*"北京上海的是人在"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    words += extra
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer, TextEncoder(tokenizer, max_length=max_length, type_ids=True)


MARKED = "a <e1>b</e1> c c c c c <e2>d</e2> e e e"


@pytest.mark.parametrize("max_length", [2, 3, 4, 6, 7, 8, 9, 12])
@pytest.mark.parametrize(
    ("family", "pairs"), [("library", False), ("library", True), ("words", False)]
)
def test_an_encoding_knows_if_its_text_was_truncated(family, pairs, max_length):
    whole = encoder(64) if family == "library" else bert(64)[1]
    limited = whole.with_max_length(max_length)
    texts = [" ".join("abcdefgh"[:count]) for count in range(9)]
    examples = [
        Example(text=text, text_pair=pair)
        for text in texts
        for pair in (texts[::3] if pairs else [None])
    ]
    lengths = [len(encoding) for encoding in whole.encode(examples)]
    truncated = [encoding.truncated for encoding in limited.encode(examples)]
    assert truncated == [length > max(max_length, lengths[0]) for length in lengths]
    assert not any(encoding.truncated for encoding in whole.encode(examples))


@pytest.mark.parametrize("family", ["library", "words"])
@pytest.mark.parametrize("text", ["a b c d e f", "a b c", ""])
def test_a_tokenizer_may_remove_the_first_tokens(family, text):
    tokenizer = letters_tokenizer() if family == "library" else bert()[0]
    tokenizer.enable_truncation(64, direction="left")
    whole = TextEncoder(tokenizer, max_length=64, type_ids=True)
    (all_ids,), (kept,) = (
        one.encode([Example(text=text)]) for one in (whole, whole.with_max_length(5))
    )
    assert kept.ids.tolist() == [2, *all_ids.ids[1:-1][-3:], 3]
    assert kept.truncated == (len(all_ids) > 5)


def test_pairs_may_lose_their_first_tokens():
    tokenizer = letters_tokenizer()
    tokenizer.enable_truncation(4, direction="left")
    left = TextEncoder(tokenizer, max_length=7, type_ids=True)
    (encoding,) = left.encode([Example(text="a b c d e f", text_pair="g h")])
    assert [WORDS[number] for number in encoding.ids[1:]] == [*"ef", "[SEP]", *"gh", "[SEP]"]


@pytest.mark.parametrize(("max_length", "truncated"), [(16, True), (17, False), (64, False)])
def test_an_encoding_knows_if_its_text_with_entities_was_truncated(max_length, truncated):
    plain, entities = parse_marked_text(MARKED)
    (encoding,) = bert(max_length)[1].encode([Example(text=plain, entities=entities)])
    assert (len(encoding), encoding.truncated) == (min(17, max_length), truncated)


def spans_in_words(text, *, max_length=64, extra=()):
    """Return the tokens of a marked text, and the tokens of each entity span."""
    tokenizer, bert_encoder = bert(max_length, extra)
    plain, entities = parse_marked_text(text)
    (encoding,) = bert_encoder.encode([Example(text=plain, entities=entities)])
    tokens = [tokenizer.id_to_token(int(token)) for token in encoding.ids]
    assert len(encoding.type_ids) == len(tokens) <= max_length
    return tokens, [tokens[start:end] for start, end in encoding.entity_spans]


@pytest.mark.parametrize(
    "text",
    [
        "a <e1>b</e1> c <e2>d</e2> e",
        "<e1>b</e1> c <e2>d</e2>",
        "c <e2>d</e2> <e1>b</e1>",
        "<e2>d</e2><e1>b</e1>",
        "$ # < <e1>b</e1> $ # <e2>d</e2> # $",
        "$<e1>b</e1>$#<e2>d</e2>#",
        "是<e1>b</e1>的<e2>d</e2>在",
        "(<e1> b </e1>),\u3000<e2>\td </e2>.",
    ],
)
def test_spans_cover_exactly_the_entities_and_their_marks(text):
    assert spans_in_words(text)[1] == [["$", "b", "$"], ["#", "d", "#"]]


def test_a_mark_character_inside_an_entity_does_not_end_it():
    _, spans = spans_in_words("<e1>$ b # $</e1> c <e2># d</e2>")
    assert spans == [["$", "$", "b", "#", "$", "$"], ["#", "#", "d", "#"]]


def test_a_chinese_entity_is_encoded_character_by_character():
    _, spans = spans_in_words("人在<e2>上海</e2><e1>北京</e1>的")
    assert spans == [["$", "北", "京", "$"], ["#", "上", "海", "#"]]


def test_an_entity_without_tokens_is_encoded_as_its_marks():
    (encoding,) = bert()[1].encode([Example(text="a \u200b\x00 b", entities=((2, 4), (5, 6)))])
    (start, end), _ = encoding.entity_spans
    assert end - start == 2
    _, spans = spans_in_words("a <e1>\x01</e1> b <e2>c</e2>")
    assert spans == [["$", "$"], ["#", "c", "#"]]


def test_truncation_keeps_two_distant_entities():
    words = ["w"] * 400
    words[3], words[396] = "<e1>b</e1>", "<e2>d</e2>"
    tokens, spans = spans_in_words(" ".join(words), max_length=64)
    assert len(tokens) == 64
    assert spans == [["$", "b", "$"], ["#", "d", "#"]]
    assert tokens[:6] == ["[CLS]", "w", "w", "w", "$", "b"]
    assert tokens[-5:] == ["#", "w", "w", "w", "[SEP]"]


def test_truncation_removes_the_tokens_farthest_from_the_entities():
    text = "a b c d <e1>e</e1> f <e2>g</e2> h i j k"
    tokens, _ = spans_in_words(text, max_length=13)
    assert tokens == ["[CLS]", *"cd$e$f#g#hi", "[SEP]"]


def test_truncation_removes_the_middle_of_a_very_long_entity():
    tokens, spans = spans_in_words(
        f"a <e1>{' '.join('bcdefghijklm' * 5)}</e1> <e2>n</e2> o", max_length=13
    )
    assert tokens == ["[CLS]", *"a$bclm$#n#o", "[SEP]"]
    assert spans == [[*"$bclm$"], [*"#n#"]]


def test_a_max_length_without_room_for_the_marks_is_rejected():
    tokens, _ = spans_in_words("a <e1>b</e1> c <e2>d</e2>", max_length=6)
    assert tokens == ["[CLS]", "$", "$", "#", "#", "[SEP]"]
    with pytest.raises(ConfigError, match="max_length 5 has no room for the 4 marks"):
        spans_in_words("a <e1>b</e1> c <e2>d</e2>", max_length=5)


def test_a_tokenizer_that_drops_the_marks_is_rejected():
    tokenizer, _ = bert()
    tokenizer.normalizer = normalizers.Replace("#", "")
    without_marks = TextEncoder(tokenizer, max_length=16, type_ids=False)
    with pytest.raises(ConfigError, match=r"drops the marks \$ #"):
        without_marks.encode([Example(text="a b", entities=((0, 1), (2, 3)))])


@pytest.mark.parametrize("kind", ["byte level", "byte level, offsets with spaces", "metaspace"])
def test_other_tokenizer_families_give_the_same_spans(kind):
    texts = ["a cup of tea", "the cup holds hot tea ($5)", "tea, tea; #cup"] * 30
    if kind == "metaspace":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60,
            special_tokens=["<unk>", "<s>", "</s>"],
            unk_token="<unk>",
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s> <s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<s>", "</s>"],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(texts, trainer)
        trim = kind == "byte level"
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 1), ("<s>", 0), trim_offsets=trim, add_prefix_space=False
        )
    family_encoder = TextEncoder(tokenizer, max_length=64, type_ids=False)
    text = "the cup)holds$tea ($5)"
    (encoding,) = family_encoder.encode([Example(text=text, entities=((4, 7), (14, 17)))])
    words = [
        "".join(tokenizer.id_to_token(int(token)) for token in encoding.ids[start:end])
        for start, end in encoding.entity_spans
    ]
    plain = [word.replace("Ġ", " ").replace("▁", " ").strip() for word in words]
    assert plain == ["$ cup $", "# tea #"]


def test_texts_with_entities_do_not_depend_on_the_rest_of_the_batch():
    examples = [
        Example(text="w " * n + "b d", entities=((2 * n, 2 * n + 1), (2 * n + 2, 2 * n + 3)))
        for n in range(1, 80, 7)
    ]
    bert_encoder = bert(32)[1]
    for example, encoding in zip(examples, bert_encoder.encode(examples), strict=True):
        (alone,) = bert_encoder.encode([example])
        assert alone.ids.tolist() == encoding.ids.tolist()
        assert alone.entity_spans == encoding.entity_spans


def test_marks_are_inserted_as_separate_words():
    assert mark_entities("ab", ((1, 2), (0, 1))) == ("# a # $ b $", [6, 10, 0, 4])
    assert mark_entities("a cup", ((2, 5), (0, 1))) == ("# a # $ cup $", [6, 12, 0, 4])
    assert mark_entities("ab c,", ((0, 1), (3, 4)))[0] == "$ a $ b # c # ,"
    assert mark_entities("", ((0, 0), (0, 0)))[0] == "$  $ #  #"


def test_real_texts_keep_their_entities_at_every_max_length(shared_data):
    vocabulary = shared_data / "vocabs_configs" / "bert-base-uncased.vocab.txt"
    words = {text: number - 1 for number, text in numbered_lines(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    path = shared_data / "semeval2010_task8" / "TEST_FILE_FULL.TXT"
    examples = list(Source(path=path, reading=Reading(format="semeval")).rows())
    for limit in (6, 16, 128):
        limited = TextEncoder(tokenizer, max_length=limit, type_ids=True)
        for example, encoding in zip(examples, limited.encode(examples), strict=True):
            (start1, end1), (start2, end2) = encoding.entity_spans
            edges = [encoding.ids[index] for index in (start1, end1 - 1, start2, end2 - 1)]
            assert edges == [words["$"]] * 2 + [words["#"]] * 2
            assert len(encoding) <= limit
            if limit == 128:
                entity = tokenizer.decode(encoding.ids[start1 + 1 : end1 - 1].tolist())
                start, end = example.entities[0]
                expected = tokenizer.encode(example.text[start:end], add_special_tokens=False).ids
                assert entity == tokenizer.decode(expected)


def test_a_vocabulary_without_the_marks_is_rejected():
    example = Example(text="a b c", entities=((0, 1), (4, 5)))
    with pytest.raises(ConfigError, match=r"the vocabulary lacks \$ or #"):
        encoder().encode([example])


def words_of(encodings, special=(2, 3)):
    """Return the tokens of the texts in the windows of each input, without special tokens."""
    ids = [[first, *first.others] for first in encodings]
    return [[[i for i in one.ids.tolist() if i not in special] for one in some] for some in ids]


@pytest.mark.parametrize("family", ["library", "words"])
@pytest.mark.parametrize("stride", [0, 1, 2])
def test_windows_hold_all_tokens_of_a_text_in_order(family, stride):
    one = encoder(6) if family == "library" else bert(6)[1]
    examples = [Example(text=" ".join("abcdefgh"[:count] * 3)) for count in range(9)]
    encodings = one.encode_windows(examples, Windows(stride=stride))
    wholes = one.with_max_length(64).encode(examples)
    for whole, windows, first in zip(wholes, words_of(encodings), encodings, strict=True):
        text = whole.ids[1:-1].tolist()
        starts = Windows(stride=stride).starts(len(text), 4)
        assert windows == [text[start : start + 4] for start in starts]
        for window in (first, *first.others):
            assert len(window) == min(6, len(whole))
            assert (window.ids[0], window.ids[-1]) == (2, 3)
            assert not window.truncated
            np.testing.assert_array_equal(window.type_ids, 0)
    assert max(len(windows) for windows in words_of(encodings)) > 3


@pytest.mark.parametrize("family", ["library", "words"])
@pytest.mark.parametrize("direction", ["right", "left"])
def test_the_first_window_is_the_truncated_text(family, direction):
    tokenizer = letters_tokenizer() if family == "library" else bert()[0]
    tokenizer.enable_truncation(6, direction=direction)
    one = TextEncoder(tokenizer, max_length=6, type_ids=True)
    examples = [Example(text=" ".join("abcdefgh"[:count])) for count in range(9)]
    windows = one.encode_windows(examples, Windows(stride=1))
    for truncated, first in zip(one.encode(examples), windows, strict=True):
        kept = (first, *first.others)[-1 if direction == "left" else 0]
        np.testing.assert_array_equal(kept.ids, truncated.ids)
        assert bool(first.others) is truncated.truncated
    inputs, offsets = all_windows(windows)
    assert len(inputs) == offsets[-1] == sum(1 + len(first.others) for first in windows)
    short = one.encode(examples[:3])
    assert all_windows(short) == (short, None)


@pytest.mark.parametrize(("max_length", "stride", "most"), [(6, 3, 2), (3, 1, 0), (2, 0, 0)])
def test_windows_that_share_most_tokens_are_refused(max_length, stride, most):
    with pytest.raises(
        ConfigError, match=rf"expected windows with a stride of at most {most}, half"
    ):
        encoder(max_length).encode_windows([Example(text="a b")], Windows(stride=stride))


def test_windows_need_a_template_with_the_text_once():
    tokenizer = letters_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    twice = TextEncoder(tokenizer, max_length=16, type_ids=False)
    with pytest.raises(ConfigError, match="does not insert a text once"):
        twice.encode_windows([Example(text="a b")], Windows(stride=1))
