import pytest
from tokenizers import Tokenizer, decoders, models

from pipework.train.pretrain.segments import unspaced, unspaced_ids


@pytest.mark.parametrize(
    ("text", "without"),
    [("北京", True), ("##京", True), ("カ", True), ("ไทย", True), ("word", False), ("한국", False)],
)
def test_scripts_without_spaces_are_recognised(text, without):
    assert unspaced(text) is without


def test_byte_level_tokens_are_decoded():
    # The three bytes of a character, and the first two of them.
    whole, part = (
        "\u00e4\u00b8\u0143",
        "\u00e4\u00b8",
    )
    tokenizer = Tokenizer(models.WordLevel({"a": 0, whole: 1, part: 2}, unk_token="a"))
    tokenizer.decoder = decoders.ByteLevel()
    assert unspaced_ids(tokenizer).tolist() == [False, True, False]
