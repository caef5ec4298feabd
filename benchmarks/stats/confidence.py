"""How sure the figures of a level are, from how it went over time.

Requests that waited in one queue were late together, and a machine is slow for a while, so requests
are not independent, and neither are seconds that follow each other. The level is cut into short
slices, and what varies slowly over all of them says what its means are worth: the mean square of
their first cosine coefficients is the variance of a slice in a long run, and a mean is Student's
with as many degrees of freedom as there are coefficients: five. Slices are of the whole level, also
where only its last windows are reported: those were chosen for how well they agree. (Lazarus,
Lewis, Stock, Watson 2018, HAR inference, Journal of Business & Economic Statistics 36.)

Shapes: S slices, K cosines, R requests or calls.
"""

from dataclasses import dataclass
from math import ceil, exp, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from pipework.benchmarks.stats.latency import PERCENTILES
from pipework.benchmarks.stats.student_t import quantile

CONFIDENCE = 0.95
SLICES = 60  # of what is reported
LEAST_SLICES = 12
FREEDOM = 5  # what lasts for less than about a tenth of what is reported is accounted for
LEAST_ANSWERS = 10  # a rate of fewer answers is anything
STUDENT = quantile((1 + CONFIDENCE) / 2, FREEDOM)  # half an interval, in standard errors

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A level in slices: so many in all, and so many (the last of them) in what is reported."""

    slices: int
    reported: int

    def error(self, slice_R: Numbers, value_R: Floats) -> float:
        """Return the standard error of the sum of these values over what is reported."""
        sum_S = np.bincount(slice_R, value_R, minlength=self.slices)
        order_K = np.arange(1, FREEDOM + 1)
        time_S = (np.arange(self.slices) + 0.5) / self.slices
        cosine_KS = sqrt(2 / self.slices) * np.cos(np.pi * np.outer(order_K, time_S))
        return sqrt(self.reported * float(np.mean((cosine_KS @ sum_S) ** 2)))

    def around(self, rate: float, error: float, answers: int) -> tuple[float, float] | None:
        """Return the 95 % interval of a rate of so many answers, None if these are too few.

        `error` is the standard error of its logarithm, that is, of a share of it.
        """
        if self.slices < LEAST_SLICES or answers < LEAST_ANSWERS:
            return None
        half = STUDENT * error
        return round(rate * exp(-half), 3), round(rate * exp(half), 3)

    def percentiles_ms(
        self, slice_R: Numbers, time_s_R: Floats, reported_s_R: Floats
    ) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals of the percentiles of what is reported, where it is long enough.

        They lie between two of its values: of which share a percentile is is as sure as the share
        of the requests that took less (R. Woodruff 1952, Journal of the American Statistical
        Association 47). It is never taken for surer than that of independent requests.
        """
        if self.slices < LEAST_SLICES:
            return {}
        sorted_ms_R = 1000 * np.sort(reported_s_R)
        found = {}
        for name, share in PERCENTILES.items():
            at_s = float(np.quantile(reported_s_R, share))
            below_R = (time_s_R <= at_s).astype(np.float64)
            error = self.error(slice_R, below_R - below_R.mean())
            error = max(error, sqrt(len(sorted_ms_R) * share * (1 - share)))
            middle, half = share * len(sorted_ms_R), STUDENT * error
            low, high = floor(middle - half), ceil(middle + half)
            if low >= 0 and high < len(sorted_ms_R):
                both = (float(sorted_ms_R[low]), float(sorted_ms_R[high]))
                found[name] = (round(both[0], 3), round(both[1], 3))
        return found
