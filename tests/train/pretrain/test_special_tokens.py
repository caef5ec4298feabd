"""What stands around texts is what the tokenizer itself sets there."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pipework.text.special_tokens import Frame

WORDS = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5}
SPECIAL = [("[CLS]", 1), ("[SEP]", 2)]
TEMPLATES = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
    "xlnet": ("$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_one_text_and_two_are_framed_as_the_tokenizer_does(family):
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = TEMPLATES[family]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=SPECIAL
    )
    frame = Frame.of(tokenizer)
    one, two = np.array([3, 4, 5]), np.array([5, 4])
    expected = tokenizer.encode("a b c", "c b")
    assert frame.ids([one, two]).tolist() == expected.ids
    assert frame.type_ids([one, two]).tolist() == expected.type_ids
    assert frame.of_pair == len(expected.ids) - 5
    assert frame.ids([one]).tolist() == tokenizer.encode("a b c").ids
    assert frame.of_one == len(tokenizer.encode("a").ids) - 1
    flags = frame.units([np.zeros(3, bool), np.zeros(2, bool)])
    assert flags.tolist() == [bool(special) for special in expected.special_tokens_mask]
