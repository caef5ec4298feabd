import json
import shutil
import sys

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import BertTokenizerFast

from pipework.data.examples import Example, Source
from pipework.errors import ConfigError
from pipework.progress import NullProgress
from pipework.text.encoding import TextEncoder
from pipework.train.config.run_config import SAMPLE, ModelSettings
from pipework.train.data.tokenizer import (
    SPECIAL_TOKENS,
    checkpoint_tokenizer,
    learn_wordpiece,
    make_tokenizer,
)

TEXTS = ["the cat sat on the mat", "the dog sat", "猫坐在垫子上", "狗坐在门口", "猫和狗"] * 4
TINY = ModelSettings(preset="tiny", vocab_size=3000)
SAMPLE_ROWS = Source(path=SAMPLE / "train.tsv")
SOURCE = Source(path="unused")


def test_the_same_texts_give_the_same_vocabulary():
    rows = [example.text for example in SAMPLE_ROWS.rows()]
    tokenizers = {learn_wordpiece(TINY, lambda: rows).to_str() for _ in range(4)}
    assert len(tokenizers) == 1


def test_special_tokens_have_the_first_ids():
    tokenizer = learn_wordpiece(TINY, lambda: TEXTS)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]


def test_chinese_characters_are_words_only_with_split_cjk():
    pieces = TINY.model_copy(update={"split_cjk": False})
    assert learn_wordpiece(TINY, lambda: TEXTS).encode("猫坐在").tokens == [
        "[CLS]",
        "猫",
        "坐",
        "在",
        "[SEP]",
    ]
    assert any(
        len(token.strip("#")) > 1
        for token in learn_wordpiece(pieces, lambda: TEXTS).encode("猫坐在垫子上").tokens[1:-1]
    )


@pytest.mark.parametrize("name", ["bert-base-chinese", "bert-base-uncased", "bert-base-cased"])
def test_a_vocabulary_file_tokenizes_as_bert_does(shared_data, name):
    vocab = shared_data / "vocabs_configs" / f"{name}.vocab.txt"
    settings = ModelSettings(preset="tiny", vocab=vocab)
    ours = TextEncoder(
        make_tokenizer(settings, SOURCE, NullProgress()), max_length=32, type_ids=True
    )
    theirs = BertTokenizerFast(vocab=str(vocab), do_lower_case=name != "bert-base-cased")
    texts = [
        "Hello, world! it's 2026",
        "你好,世界 abc",
        "naïve café",
        "",
        "x" * 120,
        "a\u3000b\tc",
    ]
    for text in texts:
        for pair in (None, "second 文"):
            (encoding,) = ours.encode([Example(text=text, text_pair=pair)])
            expected = theirs(text, pair, truncation=True, max_length=32)
            assert encoding.ids.tolist() == expected["input_ids"]
            assert encoding.type_ids.tolist() == expected["token_type_ids"]


# Words that differ in marks only: dakuten, a vowel sign, tones, breve, accent; composed Hangul.
MARKED = [
    "かき がぎ",
    "काम कम कीम",
    "มา ม้า หมา",
    "ma má mã mạ",
    "мой мои",
    "cote côté",
    "한국 항국",
]


def known_words(tokenizer, texts):
    """Return the tokens of each word, without continuation marks."""
    words = [word for text in texts for word in text.split()]
    tokens = {word: tuple(tokenizer.encode(word).tokens[1:-1]) for word in words}
    assert not any("[UNK]" in pieces for pieces in tokens.values())
    return tokens


@pytest.mark.parametrize("text", MARKED)
def test_a_learnt_vocabulary_keeps_marks(text):
    tokens = known_words(learn_wordpiece(TINY, lambda: [text] * 4), [text])
    assert len({*tokens.values()}) == len(tokens)


@pytest.mark.parametrize("text", MARKED)
def test_a_vocabulary_file_with_marks_keeps_them(tmp_path, text):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *text.split()]) + "\n", encoding="utf-8")
    tokens = known_words(
        make_tokenizer(ModelSettings(preset="tiny", vocab=vocab), SOURCE, NullProgress()), [text]
    )
    assert tokens == {word: (word,) for word in text.split()}


def test_a_vocabulary_file_without_marks_is_read_as_bert_does(tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, "cote", "cafe"]) + "\n")
    tokenizer = make_tokenizer(ModelSettings(preset="tiny", vocab=vocab), SOURCE, NullProgress())
    assert tokenizer.encode("Côté café").tokens[1:-1] == ["cote", "cafe"]


def test_a_long_chinese_sentence_is_not_unknown_without_split_cjk():
    pieces = TINY.model_copy(update={"split_cjk": False})
    tokens = learn_wordpiece(pieces, lambda: TEXTS).encode("猫坐在垫子上" * 40).tokens
    assert "[UNK]" not in tokens


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
    """A SentencePiece model of 40 pieces, as ALBERT's with [CLS], [SEP] and [MASK]."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    texts, prefix = folder / "texts.txt", folder / "spiece"
    texts.write_text("the cat sat on the mat\nthe dog ran to the cat\nno cat ran on a mat\n" * 20)
    SentencePieceTrainer.train(
        input=str(texts),
        model_prefix=str(prefix),
        vocab_size=40,
        hard_vocab_limit=False,
        pad_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def save_tokenizer(folder, model, name, kind):
    shutil.copy(model, folder / name)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))


@pytest.mark.parametrize(
    ("kind", "name", "offset", "ends"),
    [
        ("XLMRobertaTokenizer", "sentencepiece.bpe.model", 1, ("<s>", "</s>")),
        ("DebertaV2Tokenizer", "spm.model", 0, ("[CLS]", "[SEP]")),
        ("AlbertTokenizer", "spiece.model", 0, ("[CLS]", "[SEP]")),
        ("CamembertTokenizer", "sentencepiece.bpe.model", 4, ("<s>", "</s>")),
    ],
)
def test_a_sentencepiece_model_is_read(kind, name, offset, ends, sentencepiece_model, tmp_path):
    save_tokenizer(tmp_path, sentencepiece_model, name, kind)
    tokenizer = checkpoint_tokenizer(ModelSettings(name=str(tmp_path)), str(tmp_path))
    pieces = SentencePieceProcessor(model_file=str(sentencepiece_model))
    for text in "the cat ran to the mat", "a  dog sat":
        found = tokenizer.encode(text)
        assert (found.tokens[0], found.tokens[-1]) == ends
        assert found.ids[1:-1] == [piece + offset for piece in pieces.encode(text)]


def test_a_missing_sentencepiece_is_named(sentencepiece_model, tmp_path, monkeypatch):
    save_tokenizer(tmp_path, sentencepiece_model, "spiece.model", "AlbertTokenizer")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match="is a SentencePiece model") as caught:
        checkpoint_tokenizer(ModelSettings(name=str(tmp_path)), str(tmp_path))
    assert caught.value.hint == "pip install 'pipework[sentencepiece]'"


def test_a_tokenizer_of_python_code_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("the 9\ncat 5\n")
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nt h 10\n")
    fields = {"tokenizer_class": "BertweetTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match="has a BertweetTokenizer, which is Python code"):
        checkpoint_tokenizer(ModelSettings(name=str(tmp_path)), str(tmp_path))
