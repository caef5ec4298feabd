"""Whether a student is at most a margin worse than its teachers.

A test of non-inferiority: a lower confidence bound (95 %) on the paired difference of the scores,
see Piaggio et al. 2012, "Reporting of Noninferiority and Equivalence Randomized Trials",
https://doi.org/10.1001/jama.2012.87802.

Shapes: N rows, C classes.
"""

import numpy as np

from pipework.run_folder.teacher_record import TeacherRecord
from pipework.scoring.bootstrap import ONE_SIDED, TaskOutputs, paired_interval
from pipework.tasks.outputs import Outputs
from pipework.train.distill.teacher import teacher_logits
from pipework.train.report.verdict import ScoredRows, without_leaks
from pipework.train.scored_checkpoint import TrainedRun


def compare_with_teachers(trained: TrainedRun, judged: ScoredRows) -> TeacherRecord | None:
    """Compare a student with the mean logits of its teachers; None without teachers.

    Rows that are also in train are left out.

    Raises:
        PipeError: a teacher cannot be opened.
    """
    if not trained.teachers:
        return None
    run, names = trained.run, ", ".join(teacher.name for teacher in trained.teachers)
    source = run.config.sources()[judged.split]
    found = [
        teacher_logits(teacher, source, run.world.device, run.progress)
        for teacher in trained.teachers
    ]
    fresh, _ = without_leaks(judged)
    kept_N = np.arange(len(found[0]))
    if fresh is not judged:
        kept_N = np.flatnonzero(~judged.leaked_N)
    logits_NC = np.stack([logits[kept_N] for logits in found]).mean(axis=0)
    task = trained.teachers[0].manifest.task.model_copy(update={"metric": fresh.task.metric})
    teacher = TaskOutputs(outputs=Outputs.of(logits_NC), task=task)
    student = TaskOutputs(outputs=fresh.outputs, task=fresh.task)
    low = paired_interval(teacher, student, fresh.truth, ONE_SIDED).low
    return TeacherRecord(
        names=names,
        split=fresh.split,
        metric=fresh.task.metric,
        teacher=task.evaluate(teacher.outputs, fresh.truth).score,
        student=fresh.task.evaluate(fresh.outputs, fresh.truth).score,
        low=low,
        margin=run.config.train.teacher_margin / 100,
    )
