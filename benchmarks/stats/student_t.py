"""Student's distribution, for any number of degrees of freedom."""

from math import exp, inf, lgamma, log
from statistics import NormalDist

TINY = 1e-300
MOST_TERMS = 1000
CLOSE = 1e-13


def quantile(share: float, freedom: float) -> float:
    """Return the value that this share (more than a half) of Student's distribution is below.

    That of the normal distribution where `freedom` is infinite.
    """
    low = NormalDist().inv_cdf(share)
    if freedom == inf:
        return low
    high = max(2 * low, 1.0)
    while tail(high, freedom) > 1 - share:
        high *= 2
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if tail(middle, freedom) > 1 - share else (low, middle)
    return high


def tail(value: float, freedom: float) -> float:
    """Return the probability of more than a value, which is not negative."""
    if not value:
        return 0.5
    whole = freedom + value**2
    return _beta(freedom / 2, 0.5, freedom / whole, value**2 / whole) / 2


def _beta(a: float, b: float, x: float, y: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), for x and y = 1 - x above 0."""
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(y))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, y) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of I_x(a, b) (https://dlmf.nist.gov/8.17#v), as Lentz does."""
    upper, lower, value = 1.0, 0.0, 1.0
    for number in range(1, MOST_TERMS):
        term = _term(number, a, b, x)
        lower = 1 / _not_zero(1 + term * lower)
        upper = _not_zero(1 + term / upper)
        value *= upper * lower
        if abs(upper * lower - 1) < CLOSE:
            break
    return 1 / value


def _term(number: int, a: float, b: float, x: float) -> float:
    m = number // 2
    if number % 2:
        return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))


def _not_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
