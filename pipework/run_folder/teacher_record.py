"""The record of the comparison of a student with its teachers."""

from pipework.progress import counted
from pipework.record import Record
from pipework.tasks.kinds import Metric, metric_in_words


class TeacherRecord(Record):
    """A student and its teachers on the same rows.

    Attributes:
        names: the teachers.
        split: the split of the rows.
        metric: the metric of the scores.
        teacher: the score of the teachers.
        student: the score of the student.
        rows: their number.
        low: the lower bound of the difference, student minus teacher, with 95 % confidence.
        margin: the difference that is accepted.
        not_inferior: whether the student is at most the margin worse, with 95 % confidence.
    """

    names: tuple[str, ...]
    split: str
    metric: Metric
    teacher: float
    student: float
    rows: int
    low: float
    margin: float
    not_inferior: bool

    def __str__(self) -> str:
        """The comparison in a sentence."""
        shown = "The student is" if self.not_inferior else "It is not shown that the student is"
        points = f"{100 * self.margin:g} point{'s' * (100 * self.margin != 1)}"
        teachers = "teacher" if len(self.names) == 1 else "teachers"
        return (
            f"{shown} at most {points} worse than its {teachers} {', '.join(self.names)}: "
            f"{self.split} {metric_in_words(self.metric)} {self.student:.4f} vs "
            f"{self.teacher:.4f} on {counted(self.rows, 'row')}, difference "
            f"{self.student - self.teacher:+.4f}, at least {self.low:+.4f} with 95 % confidence."
        )
