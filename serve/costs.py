"""What a call of an engine costs on this machine, measured when it is loaded.

A call costs something beyond its tokens: little on a CPU, as much as thousands of tokens on a GPU.
Padding is worth it only while it costs less than a call of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

WIDTH = 64  # of a call; the cost of attention, which grows with its square, is small up to here
TOKENS = (8, WIDTH, 1024)  # of the calls from which costs are fitted
OTHER_WIDTH = 0.75  # of the calls before those that are timed, of their width
REPEATS = 3
LONG_S = 0.5  # calls that take this long in all are not repeated, and no larger one is tried
# A call of twice the tokens is better where a token then costs at most so much of what it did.
BETTER = 0.98
LARGEST = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """How calls are cut.

    Attributes:
        call_tokens: what a call costs beyond its tokens, in tokens.
        most_tokens: of a call, padding included.
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
        the size of calls from which on twice the size gains nothing.
    """
    sizes = sorted({min(tokens, longest) if tokens <= WIDTH else tokens for tokens in TOKENS})
    times_s = np.array([_fastest_s(call, size, longest) for size in sizes])
    parts = np.stack([np.ones(len(sizes)), sizes], axis=1) / times_s[:, None]
    (constant_s, token_s), *_ = np.linalg.lstsq(parts, np.ones(len(sizes)), rcond=None)
    call_tokens = constant_s / token_s if token_s > 0 else LARGEST
    most = sizes[-1]
    each_s = times_s[-1] / most
    while most < LARGEST and most * each_s < LONG_S:
        twice_s = _fastest_s(call, 2 * most, longest) / (2 * most)
        if twice_s > BETTER * each_s:
            break
        most, each_s = 2 * most, twice_s
    return Costs(call_tokens=max(0, round(float(call_tokens))), most_tokens=most)


def _fastest_s(call: Callable[[int, int], object], tokens: int, longest: int) -> float:
    """Time a call of so many tokens, each time after one of another shape.

    In a server nearly every call is of another shape than the one before, for which runtimes
    prepare themselves anew.
    """
    width = min(tokens, WIDTH, longest)
    rows = tokens // width
    times_s: list[float] = []
    while len(times_s) < REPEATS and sum(times_s) < LONG_S:
        call(rows + 1, max(1, round(OTHER_WIDTH * width)))
        start_s = perf_counter()
        call(rows, width)
        times_s.append(perf_counter() - start_s)
    return min(times_s)
