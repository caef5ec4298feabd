"""Whether a student is at most a margin worse than its teachers.

A test of non-inferiority: a lower confidence bound (95 %) on the paired difference of the scores,
see Piaggio et al. 2012, "Reporting of Noninferiority and Equivalence Randomized Trials",
https://doi.org/10.1001/jama.2012.87802.

Shapes: N rows, C classes.
"""

import numpy as np

from pipework.run_folder.teacher_record import TeacherRecord
from pipework.scoring.bootstrap import TaskOutputs, lower_bound, shows_margin
from pipework.tasks.outputs import Outputs
from pipework.train.distill.teacher import Logits, teacher_logits
from pipework.train.report.verdict import ScoredRows, without_leaks
from pipework.train.scored_checkpoint import TrainedRun


def compare_with_teachers(trained: TrainedRun, judged: ScoredRows) -> TeacherRecord | None:
    """Compare a student with the mean logits of its teachers; None without teachers.

    Rows that are also in train are left out. The thresholds of several labels are chosen on dev,
    as those of the student.

    Raises:
        PipeError: a teacher cannot be opened.
    """
    if not trained.teachers:
        return None
    logits_NC = _mean_logits(trained, judged.split)
    fresh, _ = without_leaks(judged)
    if fresh is not judged:
        logits_NC = logits_NC[~judged.leaked_N]
    task = fresh.task
    if task.many_labels:
        task = task.with_thresholds(_mean_logits(trained, "dev"), trained.data.dev.truth)
    teacher = TaskOutputs(outputs=Outputs.of(logits_NC), task=task)
    student = TaskOutputs(outputs=fresh.outputs, task=fresh.task)
    low = lower_bound(teacher, student, fresh.truth)
    margin = trained.run.config.train.teacher_margin / 100
    return TeacherRecord(
        names=tuple(teacher.name for teacher in trained.teachers),
        split=fresh.split,
        metric=task.metric,
        teacher=task.evaluate(teacher.outputs, fresh.truth).score,
        student=fresh.task.evaluate(student.outputs, fresh.truth).score,
        rows=len(fresh.truth),
        low=low,
        margin=margin,
        not_inferior=shows_margin(low, len(fresh.truth), margin),
    )


def _mean_logits(trained: TrainedRun, split: str) -> Logits:
    run = trained.run
    source = run.config.sources()[split]
    found = [
        teacher_logits(teacher, source, run.world.device, run.progress)
        for teacher in trained.teachers
    ]
    mean_NC: Logits = np.stack(found).mean(axis=0)
    return mean_NC
