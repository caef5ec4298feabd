"""The task of a checkpoint of transformers: its kind and the labels in its config.

The settings of an import replace what the config says.
"""

import re
from pathlib import Path

from transformers import PreTrainedConfig

from pipework.errors import ConfigError
from pipework.progress import counted
from pipework.tasks.registry import TASKS, kind_of, task_type
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.spans import OUTSIDE
from pipework.tasks.task import Task
from pipework.tasks.tokens import TokenTask
from pipework.train.config.data import TaskSettings
from pipework.train.model.classifier import is_per_token
from pipework.train.model.families import output_activation


def check_labels(name: str, config: PreTrainedConfig) -> None:
    """Check that a config has a label for each logit.

    Raises:
        ConfigError: it has not.
    """
    if sorted(config.id2label) != list(range(len(config.id2label))):
        message = (
            f"{name!r}: id2label has the ids {sorted(config.id2label)}, expected 0 to "
            f"{len(config.id2label) - 1}"
        )
        raise ConfigError(message, "correct id2label in config.json")


def source_task(
    name: str, config: PreTrainedConfig, settings: TaskSettings, published: Task | None = None
) -> Task:
    """Return the task of a config; the settings have priority, then a `published` task.

    Raises:
        ConfigError: the kind of task, the labels and the number of logits do not match.
    """
    task = _kind(name, config, settings)
    if output_activation(config) is not None and not task.has_values:
        message = f"{name!r} applies an activation to its logits, expected this for one score only"
        raise ConfigError(message, "remove activation_fn from config.json")
    changed = settings.model_fields_set
    settings = settings.model_copy(update={"kind": kind_of(task)})  # for the metric
    found = (config.id2label[index] for index in range(config.num_labels))
    names = tuple("" if name is None else str(name) for name in found)
    labels = task.fixed_labels or named_labels(settings, names)
    if task is TokenTask and OUTSIDE not in labels:
        message = f"{name!r} has no tag {OUTSIDE!r} outside of spans: {', '.join(labels)}"
        raise ConfigError(message, 'name its tags: --set \'task.labels=["O", "B-PER", "I-PER"]\'')
    read = settings.task_for(labels)
    if isinstance(read, TokenTask):
        read = read.model_copy(update={"inner_begins": True})
    if published is None or labels != published.labels:
        return read
    # Rows of this import have not shown the limits of the published model.
    chosen = ("min_scores", "fallback_label", "interval")
    without = {key: getattr(read, key) for key in chosen if hasattr(read, key)}
    return published.model_copy(update=without | {key: getattr(read, key) for key in changed})


def _kind(name: str, config: PreTrainedConfig, settings: TaskSettings) -> type[Task]:
    """Return the class of the task, from the settings or the config."""
    kinds = {task.problem_type: task for task in TASKS if task.problem_type}
    default = RegressionTask if config.num_labels == 1 else SingleLabelTask
    if config.problem_type not in (*kinds, None):
        message = f"{name!r} has the problem_type {config.problem_type!r}"
        raise ConfigError(message, f"expected in config.json: {', '.join(kinds)}")
    task = kinds.get(config.problem_type, default)
    per_token = is_per_token(*(config.architectures or ()))
    if per_token:
        task = TokenTask
        kinds = {"": TokenTask}
    if "kind" in settings.model_fields_set:
        task = task_type(settings.kind)
    few = config.num_labels < task.fewest_labels
    many = task.has_values and config.num_labels > 1
    if not task.predicts or few or many or task.rows_per_token is not per_token:
        logits = counted(config.num_labels, "logit") + " for each token" * per_token
        message = f"{name!r} has {logits}, which does not fit the task {kind_of(task)}"
        known = map(kind_of, kinds.values())
        raise ConfigError(message, "set task.kind: " + ", ".join(known))
    return task


def _is_label(name: str) -> bool:
    visible = re.sub("[\u200c\u200d\u00a0\u202f\u3000]", "", name)  # joiners, other blanks
    return name == name.strip() != "" and visible.isprintable()


def named_labels(settings: TaskSettings, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the configured labels, or else the names in the source.

    Raises:
        ConfigError: the number of configured labels is another.
    """
    if settings.labels is None:
        if len(set(names)) < len(names) or not all(map(_is_label, names)):
            message = f"expected distinct labels in a line without outer spaces, found {names}"
            raise ConfigError(message, 'name them: --set \'task.labels=["a", "b"]\'')
        return names
    if isinstance(settings.labels, Path) or len(settings.labels) != len(names):
        message = f"expected task.labels to be a list of {counted(len(names), 'label')}"
        raise ConfigError(message, f"they replace, in this order: {', '.join(names)}")
    return settings.labels
