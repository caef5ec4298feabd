"""What a call of an engine costs on this machine, measured when it is loaded.

A call costs something beyond its tokens: little on a CPU, as much as thousands of tokens on a GPU.
Padding is worth it only while it costs less than a call of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np

WIDTH = 64  # of a call; the cost of attention, which grows with its square, is small up to here
TOKENS = (16, WIDTH, 512)  # of the calls from which costs are fitted
REPEATS = 3
SLOW_S = 0.3  # a call that takes so long is timed once, and no larger one is tried
# Larger calls are tried while what a call costs beyond its tokens is more than this share of them.
LITTLE = 0.12
LARGEST = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """How calls are cut.

    Attributes:
        call_tokens: what a call costs beyond its tokens, in tokens.
        most_tokens: of a call, padding included; packed ones may be a little larger.
    """

    call_tokens: int
    most_tokens: int


# For calls before costs are measured, and where they are not.
CPU = Costs(call_tokens=16, most_tokens=1024)


def measure(call: Callable[[int, int], object], longest: int) -> Costs:
    """Measure calls of some shapes.

    Args:
        call: makes one; it takes rows and width.
        longest: the most tokens of an input.

    Returns:
        A constant and a part for each token, fitted by least squares of the relative errors; and
        the size of calls from which on twice the size gains nothing, or little.
    """
    shapes = sorted({_shape(tokens, longest) for tokens in TOKENS})
    times_s = np.array(_fastest_s(call, shapes))
    tokens = np.array([rows * width for rows, width in shapes])
    parts = np.stack([np.ones(len(tokens)), tokens], axis=1) / times_s[:, None]
    (constant_s, token_s), *_ = np.linalg.lstsq(parts, np.ones(len(tokens)), rcond=None)
    call_tokens = constant_s / token_s if token_s > 0 else LARGEST
    most, slowest_s = TOKENS[-1], times_s.max()
    while most < LARGEST and call_tokens > LITTLE * most and slowest_s <= SLOW_S:
        once, twice = (_shape(size, longest) for size in (most, 2 * most))
        once_s, slowest_s = _fastest_s(call, (once, twice))
        if slowest_s / prod(twice) >= once_s / prod(once):
            break
        most *= 2
    return Costs(call_tokens=max(0, round(float(call_tokens))), most_tokens=most)


def _shape(tokens: int, longest: int) -> tuple[int, int]:
    """Return rows and width of a call of about so many tokens."""
    width = min(tokens, WIDTH, longest)
    return tokens // width, width


def _fastest_s(
    call: Callable[[int, int], object], shapes: Sequence[tuple[int, int]]
) -> list[float]:
    """Time calls of two or more shapes in turns: so each comes after one of another.

    In a server nearly every call does, and runtimes prepare themselves anew for it. What they do
    once for a shape is not counted.
    """
    for shape in shapes:
        call(*shape)
    times_s: list[list[float]] = [[] for _ in shapes]
    for _ in range(REPEATS):
        for shape, found_s in zip(shapes, times_s, strict=True):
            if not found_s or found_s[-1] <= SLOW_S:
                start_s = perf_counter()
                call(*shape)
                found_s.append(perf_counter() - start_s)
    return [min(found_s) for found_s in times_s]
