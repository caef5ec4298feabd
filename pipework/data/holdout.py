"""Choose the rows that a split holds out of a file, by their texts.

Shapes: N rows, R held-out rows.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from pipework.run_folder.manifest import Part

DIGEST_BYTES = 16
Field = str | tuple[object, ...] | None


def text_digest(fields: tuple[Field, ...], seed: int) -> bytes:
    """Return the digest that orders rows; copies of a text have the same."""
    text = repr((seed, *fields)).encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def held_out_digests(rows: Iterable[tuple[bytes, str]], part: Part) -> set[bytes] | None:
    """Return the digests of the rows that a part holds out; None if there are too few rows.

    Each label gets seats in proportion to its rows, by the method of Sainte-Lague: a row has the
    key (k + 1/2) / n, if it has the k-th smallest digest of the n rows of its label, and the rows
    with the smallest keys are held out. More held-out rows thus include fewer.

    Args:
        rows: digest and label of each row; equal labels for a choice without regard to labels.
        part: the numbers of rows.
    """
    digests = bytearray()
    labels = list[int]()
    numbers: dict[str, int] = {}
    for row, label in rows:
        digests += row
        labels.append(numbers.setdefault(label, len(numbers)))
    size = part.rows or 0
    if len(labels) <= size:
        return None
    rank_of_label = np.argsort(np.argsort([*numbers]))  # independent of the order of the rows
    labels_N = rank_of_label[np.array(labels)]
    high_N, low_N = np.frombuffer(digests, ">u8").reshape(-1, 2).T
    order_N = np.lexsort((low_N, high_N, labels_N))
    counts_C = np.bincount(labels_N)
    starts_C = np.cumsum(counts_C) - counts_C
    sorted_N = labels_N[order_N]
    keys_N = (np.arange(len(order_N)) - starts_C[sorted_N] + 0.5) / counts_C[sorted_N]
    held_R = order_N[np.lexsort((sorted_N, keys_N))[:size]]
    texts = [bytes(digests[row * DIGEST_BYTES :][:DIGEST_BYTES]) for row in held_R.tolist()]
    return {*texts[part.after :]} - {*texts[: part.after]}
