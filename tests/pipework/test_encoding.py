import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from pipework.encoding import TextEncoder
from pipework.errors import InputError, RunFolderError
from pipework.examples import Example

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]


def encoder(max_length=16, type_ids=True):
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=64)  # settings that a checkpoint's tokenizer may bring along
    tokenizer.enable_truncation(4)
    return TextEncoder(tokenizer, max_length=max_length, type_ids=type_ids)


def test_an_encoding_is_never_padded_and_has_the_contract_types():
    (found,) = encoder().encode([Example(text="a B c")])
    assert found.ids.tolist() == [2, 4, 5, 6, 3]
    assert found.ids.dtype == np.int32
    assert found.type_ids.dtype == np.int8
    assert len(found) == 5


def test_a_pair_is_cut_on_its_longer_side():
    (found,) = encoder(max_length=8).encode([Example(text="a b c d e f", text_pair="g h")])
    assert found.ids.tolist() == [2, 4, 5, 6, 3, 10, 11, 3]
    assert found.type_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_a_pair_is_cut_on_its_second_side_when_that_is_longer():
    (found,) = encoder(max_length=8).encode([Example(text="g h", text_pair="a b c d e f")])
    assert found.ids.tolist() == [2, 10, 11, 3, 4, 5, 6, 3]


def test_a_special_token_written_in_a_text_is_text():
    (plain,) = encoder().encode([Example(text="a [SEP] b")])
    assert plain.ids.tolist().count(3) == 1


def test_an_empty_text_is_two_special_tokens():
    (found,) = encoder().encode([Example(text="")])
    assert found.ids.tolist() == [2, 3]


def test_a_family_without_type_ids_gets_none():
    assert encoder(type_ids=False).encode([Example(text="a")])[0].type_ids is None


def test_an_encoding_does_not_depend_on_its_neighbours():
    texts = [Example(text=" ".join("abcdefgh"[: n % 9])) for n in range(40)]
    one = encoder()
    together = one.encode(texts)
    for text, found in zip(texts, together, strict=True):
        assert one.encode([text])[0].ids.tolist() == found.ids.tolist()


def test_a_lone_surrogate_is_a_clear_error():
    with pytest.raises(InputError, match="lone surrogate"):
        encoder().encode([Example(text="a \ud800")])


def test_another_limit_leaves_the_first_encoder_as_it_was():
    one = encoder(max_length=16)
    assert len(one.limited_to(4).encode([Example(text="a b c d e")])[0]) == 4
    assert len(one.encode([Example(text="a b c d e")])[0]) == 7


def test_a_file_that_is_no_tokenizer_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(RunFolderError, match=r"tokenizer\.json is not a tokenizer"):
        TextEncoder.open(path, max_length=8, type_ids=False)
