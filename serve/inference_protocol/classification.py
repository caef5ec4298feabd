"""The best classes of each text in words, as Triton's classification extension has them.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md

Shapes: N texts, C classes, K of them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def classify(
    values_NC: NDArray[np.float32], labels_C: Sequence[str], best: int
) -> NDArray[np.object_]:
    """Return UTF-8 bytes `value:index:label` [N, K], the highest value first.

    Where there are fewer classes than `best`, there are as many as there are.
    """
    ranks_NK = np.argsort(-values_NC, axis=1, kind="stable")[:, :best]
    words = [
        [f"{row[index]:f}:{index}:{labels_C[index]}".encode() for index in ranks]
        for row, ranks in zip(values_NC.tolist(), ranks_NK.tolist(), strict=True)
    ]
    return np.array(words, np.object_).reshape(ranks_NK.shape)
