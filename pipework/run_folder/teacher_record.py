"""The record of the comparison of a student with its teachers."""

from pipework.record import Record
from pipework.tasks.kinds import Metric, metric_in_words

ROUNDING = 1e-9


class TeacherRecord(Record):
    """A student and its teachers on the same rows.

    Attributes:
        names: the teachers.
        split: the split of the rows.
        metric: the metric of the scores.
        teacher: the score of the teachers.
        student: the score of the student.
        low: the lower bound of the difference, student minus teacher, with 95 % confidence.
        margin: the difference that is accepted.
    """

    names: str
    split: str
    metric: Metric
    teacher: float
    student: float
    low: float
    margin: float

    @property
    def not_inferior(self) -> bool:
        """Whether the student is at most the margin worse, with 95 % confidence."""
        return self.low > ROUNDING - self.margin  # with few rows, equality is too likely

    def __str__(self) -> str:
        """The comparison in a sentence."""
        shown = "The student is" if self.not_inferior else "It is not shown that the student is"
        return (
            f"{shown} at most {100 * self.margin:g} points worse than its teacher {self.names}: "
            f"{self.split} {metric_in_words(self.metric)} {self.student:.4f} vs "
            f"{self.teacher:.4f}, difference {self.student - self.teacher:+.4f}, at least "
            f"{self.low:+.4f} with 95 % confidence."
        )
