"""The kinds of tasks. A new kind is a module of this package and an entry of `TASKS`."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from pipework.tasks.kinds import TaskKind
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.pretraining import PretrainingTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task

TASKS: tuple[type[Task], ...] = (SingleLabelTask, MultiLabelTask, RegressionTask, PretrainingTask)
if TYPE_CHECKING:
    AnyTask = Task
else:
    # The task in a manifest: the field `kind` determines the class.
    AnyTask = Annotated[Union[TASKS], Field(discriminator="kind")]


def task_type(kind: TaskKind) -> type[Task]:
    """Return the class of a kind of task."""
    return next(task for task in TASKS if task.model_fields["kind"].default == kind)
