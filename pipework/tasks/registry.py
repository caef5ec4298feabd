"""The kinds of tasks.

A new kind is a module of this package and an entry of `TASKS`, its losses are an entry of
`pipework.train.objectives.OBJECTIVES`, and its predictions belong to the type
`pipework.tasks.predictions.Prediction`, which clients read.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SerializeAsAny, ValidationError

from pipework.tasks.heads import HeadsTask, TokenHeadsTask
from pipework.tasks.kinds import DEFAULT_KIND
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.pretraining import PretrainingTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.tasks.tokens import TokenTask

TASKS: list[type[Task]] = [
    SingleLabelTask,
    MultiLabelTask,
    RegressionTask,
    TokenTask,
    PretrainingTask,
]
COMBINED: list[type[Task]] = [HeadsTask, TokenHeadsTask]  # of `pipe combine`, not of a training


def kind_of(task: type[Task]) -> str:
    """Return the name of a kind."""
    return str(task.model_fields["kind"].default)


def task_type(kind: str) -> type[Task]:
    """Return the class of a kind of task.

    Raises:
        ValueError: the kind is unknown.
    """
    for task in (*TASKS, *COMBINED):
        if kind_of(task) == kind:
            return task
    message = f"expected one of {', '.join(map(kind_of, TASKS))}"
    raise ValueError(message)


def _known(kind: str) -> str:
    task_type(kind)
    return kind


def _task(value: object) -> object:
    """Return the task of the fields in a manifest."""
    if not isinstance(value, Mapping):
        return value
    fields: dict[str, Any] = dict(value)
    kind = fields.get("kind", DEFAULT_KIND)
    try:
        return task_type(kind).model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if where := ".".join(map(str, first["loc"])):
            message = f"{where}: {message}"
        raise ValueError(message) from error
    except ValueError as error:
        message = f"kind: {error}, found {kind!r}"
        raise ValueError(message) from error


Kind = Annotated[str, AfterValidator(_known)]
# The field `kind` of a task in a manifest determines its class.
AnyTask = Annotated[SerializeAsAny[Task], BeforeValidator(_task)]
