"""The features of the linear model: TF-IDF of tokens and token bigrams.

Shapes: N rows, F features, one more for the share of common tokens of pairs, B rows of a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.text.padding import Padding, pad
from pipework.train.data.token_cache import TokenSet
from pipework.train.model.bag_of_ngrams import BagOfNgrams

Matrix = Any  # scipy's sparse [N, F]: it has no types
BATCH = 512
PAIR_VALUES = 2**23  # most comparisons of tokens in a batch of pairs, one byte each


@dataclass(frozen=True, kw_only=True, eq=False)
class NgramFeatures:
    """Features of texts, with the weights of the texts that they were fitted to.

    Attributes:
        x_NF: the features.
        idf_F: the inverse document frequencies, at most 1, so that sums fit into float16.
    """

    x_NF: Matrix
    idf_F: NDArray[np.float32]

    @classmethod
    def fit(cls, model: BagOfNgrams, tokens: TokenSet, rows: Sequence[int]) -> "NgramFeatures":
        """Return the features of rows of a token set, and their weights."""
        from scipy import sparse  # noqa: PLC0415  (needs an extra)

        counts_NF = _counts(model, tokens, rows)
        documents_F = np.bincount(counts_NF.indices, minlength=counts_NF.shape[1])
        idf_F = np.log((1 + len(rows)) / (1 + documents_F)) + 1
        idf_F = (idf_F / idf_F.max()).astype(np.float32)
        squares_F = idf_F**2
        norms_N = np.sqrt(counts_NF @ squares_F)
        x_NF = sparse.diags(1 / norms_N) @ counts_NF @ sparse.diags(idf_F)
        if model.config.pairs:
            kinds = model.config.kinds
            both_F, token_F = np.zeros((2, len(squares_F)), np.float32)
            token_F[:kinds] = squares_F[:kinds]
            both_F[kinds // 2 : kinds] = squares_F[kinds // 2 : kinds]
            share_N = (counts_NF @ both_F) / (counts_NF @ token_F)
            x_NF = sparse.hstack((x_NF, share_N[:, None]))
        return cls(x_NF=sparse.csr_matrix(x_NF, dtype=np.float32), idf_F=idf_F)


def _counts(model: BagOfNgrams, tokens: TokenSet, rows: Sequence[int]) -> Matrix:
    """Return how often each row reads each row of the table."""
    from scipy import sparse  # noqa: PLC0415  (needs an extra)

    return sparse.vstack(list(_batches(model, tokens, rows)), format="csr")


def _batches(model: BagOfNgrams, tokens: TokenSet, rows: Sequence[int]) -> Iterator[Matrix]:
    from scipy import sparse  # noqa: PLC0415  (needs an extra)

    padding = Padding(pad_id=0, type_ids=False)
    longest = int(tokens.lengths.max())
    size = max(1, min(BATCH, PAIR_VALUES // longest**2)) if model.config.pairs else BATCH
    for start in range(0, len(rows), size):
        arrays = pad(tokens.encodings(rows[start : start + size]), padding)
        ids_BT, mask_BT = (torch.from_numpy(arrays[k]) for k in ("input_ids", "attention_mask"))
        with torch.inference_mode():
            read = model.rows(ids_BT, mask_BT).numpy()
        mask = np.tile(arrays["attention_mask"], 2) != 0
        row, _ = np.nonzero(mask)
        ones = np.ones(len(row), np.float32)
        yield sparse.csr_matrix((ones, (row, read[mask])), (len(read), model.config.features))
