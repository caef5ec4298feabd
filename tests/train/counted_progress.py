"""A receiver of progress reports that counts, and interrupts."""

import math

from pipework.progress import NullProgress


class CountedProgress(NullProgress):
    """Counts stages and units; the report that reaches `most` units interrupts the operation."""

    def __init__(self, most=math.inf):
        self.stages = self.total = self.done = 0
        self.most = most

    def stage(self, title, total, unit):
        self.stages += 1
        self.total = total
        return super().stage(title, total, unit)

    def advance(self, count, figures=None):  # noqa: ARG002
        self.done += count
        if self.done >= self.most:
            raise KeyboardInterrupt
