from dataclasses import asdict

import pytest

from pipework.errors import TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.inference_protocol.infer_request import read_texts
from pipework.wire.text_tensors import InputTexts

LIMITS = LimitSettings(texts=2, characters=3)


def read(texts):
    elements = {name: value for name, value in asdict(texts).items() if value is not None}
    return read_texts(elements, tuple(elements), LIMITS)


@pytest.mark.parametrize(
    "texts",
    [
        InputTexts(text=[]),
        InputTexts(text=[b"abc", "今天下".encode()]),  # nine bytes, three characters
        InputTexts(text=[b"abc"], text_pair=[b"abc"]),
    ],
)
def test_texts_within_the_limits_are_accepted(texts):
    assert asdict(read(texts)) == asdict(texts)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            InputTexts(text=[b"a", "今天下午".encode()]),
            "input 1: expected at most 3 characters, found 4",
        ),
        (
            InputTexts(text=[b"a", b"b"], text_pair=[b"a", b"abcd"]),
            "input 1: expected at most 3 characters, found 4",
        ),
        (InputTexts(text=[b"\xff" * 4]), "input 0: expected at most 3 characters, found 4"),
    ],
)
def test_texts_beyond_the_limits_are_refused(texts, said):
    with pytest.raises(TooLargeError, match=said):
        read(texts)
