"""Special tokens around texts are the same as those of the tokenizer."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pipework.text.special_tokens import SpecialTokens

WORDS = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5}
SPECIAL = [("[CLS]", 1), ("[SEP]", 2)]
TEMPLATES = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
    "xlnet": ("$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_special_tokens_of_texts_and_pairs_equal_those_of_the_tokenizer(family):
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = TEMPLATES[family]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=SPECIAL
    )
    special_tokens = SpecialTokens.of(tokenizer)
    first, second = np.array([3, 4, 5]), np.array([5, 4])
    expected = tokenizer.encode("a b c", "c b")
    assert special_tokens.ids([first, second]).tolist() == expected.ids
    assert special_tokens.type_ids([first, second]).tolist() == expected.type_ids
    assert special_tokens.pair_count == len(expected.ids) - 5
    assert special_tokens.ids([first]).tolist() == tokenizer.encode("a b c").ids
    assert special_tokens.single_count == len(tokenizer.encode("a").ids) - 1
    flags = special_tokens.units([np.zeros(3, bool), np.zeros(2, bool)])
    assert flags.tolist() == [bool(special) for special in expected.special_tokens_mask]
