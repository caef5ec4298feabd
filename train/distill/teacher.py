"""Teachers: finished runs that another run distils from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipework.errors import ConfigError
from pipework.run_folder.files import MANIFEST_FILE, verify_files
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.run_folder.task import Task
from pipework.text.encoding import TextEncoder
from pipework.train.data.disk_cache import digest_values


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A finished run whose logits the student learns from."""

    run: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The name of the run folder; a run of several seeds includes the parent folder."""
        is_seed = self.run.name.startswith("seed-")
        return f"{self.run.parent.name}/{self.run.name}" if is_seed else self.run.name

    @property
    def digest(self) -> str:
        """A digest of weights, tokenizer and input limits, which determine its logits."""
        return digest_values((self.manifest.model.checkpoint, self.manifest.input))

    def encoder(self) -> TextEncoder:
        """Open the tokenizer of the teacher, which may differ from that of the student.

        Raises:
            RunFolderError: the tokenizer is missing or has changed.
        """
        input_record = self.manifest.input
        verify_files(self.run, (input_record.tokenizer,))
        path = self.run / input_record.tokenizer.path
        return TextEncoder.open(
            path, max_length=input_record.max_length, type_ids=input_record.type_ids
        )


def open_teachers(runs: Iterable[Path], task: Task, fields: Sequence[str]) -> tuple[Teacher, ...]:
    """Read the manifests of the teachers; a folder of seeds is expanded to its runs.

    Args:
        runs: the run folders from the settings.
        task: the task of the student.
        fields: the input fields of the student.

    Raises:
        RunFolderError: a folder contains no finished run.
        ConfigError: a teacher has another task, other labels or other input fields.
    """
    seeds = [seed for run in runs for seed in _seeds(run)]
    teachers = tuple(Teacher(run=run, manifest=read_manifest(run)) for run in seeds)
    for teacher in teachers:
        _check(teacher, task, fields)
    return teachers


def _seeds(run: Path) -> list[Path]:
    seeds = [] if (run / MANIFEST_FILE).is_file() else sorted(run.glob("seed-*/"))
    return seeds or [run]


def _check(teacher: Teacher, task: Task, fields: Sequence[str]) -> None:
    teacher_task, reads = teacher.manifest.task, teacher.manifest.input.fields
    where = f"train.teacher {teacher.run}"
    if teacher_task.kind is not task.kind:
        message = f"{where} has task.kind = {teacher_task.kind}, this run has {task.kind}"
        raise ConfigError(message, "choose a teacher with the same task.kind")
    if teacher_task.labels != task.labels:
        first = next(
            (
                index
                for index, pair in enumerate(zip(teacher_task.labels, task.labels, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(teacher_task.labels), len(task.labels)),
        )
        theirs, ours = (_label(labels, first) for labels in (teacher_task.labels, task.labels))
        message = f"{where} has {theirs} as label {first}, this run has {ours}"
        raise ConfigError(
            message, "set task.labels to the labels of the teacher, in the same order"
        )
    if tuple(reads) != tuple(fields):
        message = f"{where} reads {' and '.join(reads)}, this run reads {' and '.join(fields)}"
        raise ConfigError(message, "set data.columns to the fields that the teacher reads")


def _label(labels: Sequence[str], first: int) -> str:
    return repr(labels[first]) if first < len(labels) else "none"
