"""Which tokens are of writing without spaces between words: Chinese, Japanese, Thai and others."""

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

# Unicode blocks: Thai and Lao, Myanmar, Khmer, kana, and the ideographs that BERT splits.
BLOCKS = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F)),
)


def unspaced(text: str) -> bool:
    """Whether a character of a text is of such writing."""
    return any(low <= ord(character) <= high for character in text for low, high in BLOCKS)


def unspaced_ids(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return for each id of a vocabulary whether its token is of such writing, bool [V].

    A token of a byte-level vocabulary that is part of a character only is not: it stays with its
    neighbours.
    """
    vocabulary = tokenizer.get_vocab()
    found_V = np.zeros(max(vocabulary.values()) + 1, bool)
    for token, index in vocabulary.items():
        readable = token if token.isascii() or unspaced(token) else tokenizer.decode([index])
        found_V[index] = unspaced(readable)
    return found_V
