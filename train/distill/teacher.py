"""Teachers: finished runs whose answers another run learns from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipework.errors import ConfigError
from pipework.run_folder.files import FILE_NAME, verify_files
from pipework.run_folder.manifest import Manifest, read_manifest
from pipework.run_folder.task import Task
from pipework.text.encoding import TextEncoder
from pipework.train.data.disk_cache import digest_of


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A run that answers as the student is to answer."""

    run: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """What the run is called, with the folder of its seeds where it is one of several."""
        several = self.run.name.startswith("seed-")
        return f"{self.run.parent.name}/{self.run.name}" if several else self.run.name

    @property
    def digest(self) -> str:
        """What decides its answers: weights, tokenizer and limits."""
        return digest_of((self.manifest.model.checkpoint, self.manifest.input))

    def encoder(self) -> TextEncoder:
        """Open its own tokenizer, which need not be the student's.

        Raises:
            RunFolderError: it is missing or changed.
        """
        given = self.manifest.input
        verify_files(self.run, (given.tokenizer,))
        path = self.run / given.tokenizer.path
        return TextEncoder.open(path, max_length=given.max_length, type_ids=given.type_ids)


def open_teachers(runs: Iterable[Path], task: Task, fields: Sequence[str]) -> tuple[Teacher, ...]:
    """Read the manifests of teachers; a folder of seeds stands for the runs below it.

    Args:
        runs: as the settings name them.
        task: of the student.
        fields: of the student's inputs.

    Raises:
        RunFolderError: a folder holds no finished run.
        ConfigError: a teacher decides something else, or reads other fields.
    """
    seeds = [one for run in runs for one in _seeds(run)]
    teachers = tuple(Teacher(run=run, manifest=read_manifest(run)) for run in seeds)
    for teacher in teachers:
        _check(teacher, task, fields)
    return teachers


def _seeds(run: Path) -> list[Path]:
    below = [] if (run / FILE_NAME).is_file() else sorted(run.glob("seed-*/"))
    return below or [run]


def _check(teacher: Teacher, task: Task, fields: Sequence[str]) -> None:
    found, reads = teacher.manifest.task, teacher.manifest.input.fields
    where = f"train.teacher {teacher.run}"
    if found.kind is not task.kind:
        message = f"{where} is of kind {found.kind}, this run of kind {task.kind}"
        raise ConfigError(message, "a teacher decides what its student decides")
    if found.labels != task.labels:
        place = next(
            (
                one
                for one, pair in enumerate(zip(found.labels, task.labels, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(found.labels), len(task.labels)),
        )
        theirs, ours = (_label(labels, place) for labels in (found.labels, task.labels))
        message = f"{where} has {theirs} as label {place}, this run has {ours}"
        raise ConfigError(message, "set task.labels to the teacher's, in the teacher's order")
    if tuple(reads) != tuple(fields):
        message = f"{where} reads {' and '.join(reads)}, this run {' and '.join(fields)}"
        raise ConfigError(message, "set data.columns to the fields that the teacher reads")


def _label(labels: Sequence[str], place: int) -> str:
    return repr(labels[place]) if place < len(labels) else "none"
