"""A batch becomes micro-batches of like lengths.

Shapes: N inputs of a batch.
"""

from collections.abc import Sequence

# What a call of the runtime costs beyond its tokens, in tokens. Measured on two cores of an EPYC:
# 6 to 16 for encoders of 2 to 6 layers. Padding is worth it only while it costs less than a call.
CALL_COST_TOKENS = 16


def plan(lengths_N: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut a batch into micro-batches of like lengths.

    Args:
        lengths_N: tokens of each input.
        max_tokens: the most tokens of a micro-batch, padding included. An input that is longer
            gets a micro-batch of its own.

    Returns:
        Indices of the inputs of each micro-batch, shortest first; every input occurs once.
    """
    batches: list[list[int]] = []
    tokens = 0  # without padding, of the last micro-batch
    for index in sorted(range(len(lengths_N)), key=lengths_N.__getitem__):
        length = lengths_N[index]
        padded = length * (len(batches[-1]) + 1) if batches else 0
        fits = padded <= max_tokens and padded - tokens - length <= CALL_COST_TOKENS
        if batches and fits:
            batches[-1].append(index)
            tokens += length
        else:
            batches.append([index])
            tokens = length
    return batches
