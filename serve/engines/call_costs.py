"""Measures the cost of engine calls on this machine when the engine is loaded.

A call has a fixed cost: small on a CPU, that of thousands of tokens on a GPU. Padding inputs into
one call pays only if it costs less than a second call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np

WIDTH = 64  # tokens; up to this width the quadratic cost of attention is small
TOKENS = (16, WIDTH, 512)  # sizes of the timed calls
REPEATS = 3
SLOW_S = 0.3  # a call that takes longer is timed once, and no larger call is tried
# Larger calls are tried while the fixed cost is more than this share of the call's tokens.
FIXED_SHARE = 0.12
LARGEST = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Costs by which batches are cut into calls.

    Attributes:
        call_tokens: fixed cost of a call, in tokens.
        most_tokens: most tokens of a call, including padding; packed calls may be a little larger.
    """

    call_tokens: int
    most_tokens: int


# Default for engines without measured costs.
CPU = Costs(call_tokens=16, most_tokens=1024)


def measure(call: Callable[[int, int], object], longest: int) -> Costs:
    """Measure calls of several shapes.

    Args:
        call: makes a call with a number of rows and a width.
        longest: the most tokens of an input.

    Returns:
        The fixed cost, from a least-squares fit of relative errors to a constant plus a cost per
        token, and the call size at which doubling it gives little or no speed-up.
    """
    shapes = sorted({_shape(tokens, longest) for tokens in TOKENS})
    times_s = np.array(_fastest_s(call, shapes))
    tokens = np.array([rows * width for rows, width in shapes])
    parts = np.stack([np.ones(len(tokens)), tokens], axis=1) / times_s[:, None]
    (constant_s, token_s), *_ = np.linalg.lstsq(parts, np.ones(len(tokens)), rcond=None)
    call_tokens = constant_s / token_s if token_s > 0 else LARGEST
    most, slowest_s = TOKENS[-1], times_s.max()
    while most < LARGEST and call_tokens > FIXED_SHARE * most and slowest_s <= SLOW_S:
        once, twice = (_shape(size, longest) for size in (most, 2 * most))
        once_s, slowest_s = _fastest_s(call, (once, twice))
        if slowest_s / prod(twice) >= once_s / prod(once):
            break
        most *= 2
    return Costs(call_tokens=max(0, round(float(call_tokens))), most_tokens=most)


def _shape(tokens: int, longest: int) -> tuple[int, int]:
    """Return the rows and width of a call with about this number of tokens."""
    width = min(tokens, WIDTH, longest)
    return tokens // width, width


def _fastest_s(
    call: Callable[[int, int], object], shapes: Sequence[tuple[int, int]]
) -> list[float]:
    """Return the fastest time of each shape, alternating between two or more shapes.

    In a server nearly every call has another shape than the last, and runtimes do some work for
    each change. Work that they do once per shape is not counted.
    """
    for shape in shapes:
        call(*shape)
    times_s: list[list[float]] = [[] for _ in shapes]
    for _ in range(REPEATS):
        for shape, shape_times_s in zip(shapes, times_s, strict=True):
            if not shape_times_s or shape_times_s[-1] <= SLOW_S:
                start_s = perf_counter()
                call(*shape)
                shape_times_s.append(perf_counter() - start_s)
    return [min(shape_times_s) for shape_times_s in times_s]
