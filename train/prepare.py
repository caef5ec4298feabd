"""Prepare a run before its first step: classes, tokenizer, teachers, data report."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.tasks.kinds import Words
from pipework.tasks.task import Task
from pipework.tasks.tokens import TokenTask
from pipework.text.encoding import TextEncoder
from pipework.text.words import words_of_spans
from pipework.train.config.run_config import Config
from pipework.train.data.disk_cache import (
    cache_key,
    cached_text,
    data_file_digest,
    digest_values,
    source_content,
)
from pipework.train.data.labels import check_labels, class_labels
from pipework.train.data.tokenizer import check_unknown_rate, make_tokenizer
from pipework.train.data_report.data_report import cached_report
from pipework.train.data_report.records import DataReport
from pipework.train.distill.teacher import Teacher, open_teachers
from pipework.train.loop.loop import TrainingRun


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """The results of the preparation, computed by the first process for all processes.

    Attributes:
        task: kind, labels and metric.
        tokenizer: as JSON.
        teachers: the runs to distil from.
        fingerprint: digests of the data by name; a run can only be resumed with the same data.
    """

    task: Task
    tokenizer: str
    teachers: tuple[Teacher, ...]
    fingerprint: dict[str, str]

    @property
    def loaded(self) -> Tokenizer:
        """The tokenizer."""
        return Tokenizer.from_str(self.tokenizer)

    def encoder(self, max_length: int, *, type_ids: bool) -> TextEncoder:
        """Return an encoder with the tokenizer of the run."""
        return TextEncoder(self.loaded, max_length=max_length, type_ids=type_ids)


def prepare(config: Config, progress: Progress) -> PreparedRun:
    """Find the classes and the tokenizer; results for unchanged files come from the cache.

    Raises:
        ConfigError: the config does not match the data.
        DataError: a file cannot be read.
    """
    read = dict(config.sources())
    source = read["train"]
    if (unlabelled := config.data.unlabelled_source()) is not None:
        read["unlabelled"] = unlabelled
    files = {f"the {name} file": data_file_digest(file.path) for name, file in read.items()}
    labels = _labels(config, source, progress)
    check_labels(labels, config.sources(), configured=config.task.labels is not None)
    task = _task(config, source, labels, progress)
    tokenizer = _tokenizer(config, source, progress)
    teachers = open_teachers(config.train.teacher, task, config.data.fields)
    files |= {f"the teacher {teacher.name}": teacher.digest for teacher in teachers}
    learned = {"the labels": digest_values(labels), "the tokenizer": digest_values([tokenizer])}
    return PreparedRun(
        task=task, tokenizer=tokenizer, teachers=teachers, fingerprint={**files, **learned}
    )


def _labels(config: Config, source: Source, progress: Progress) -> tuple[str, ...]:
    labels = config.task.labels
    label_key = data_file_digest(labels) if isinstance(labels, Path) else labels
    parts = ("labels", config.task.kind, label_key, source_content(source.whole()))

    def make() -> str:
        progress.note(f"reading the labels of {source.path.name}")
        return json.dumps(class_labels(config.task.labels, source))

    return tuple(json.loads(cached_text(cache_key(parts), make)))


def _task(config: Config, source: Source, labels: tuple[str, ...], progress: Progress) -> Task:
    task = config.task.task_for(labels)
    if not isinstance(task, TokenTask) or config.task.words is not None:
        return task

    def make() -> str:
        return json.dumps(words_of_spans(source.rows()))

    words, lost = json.loads(cached_text(cache_key(("words", source_content(source))), make))
    progress.note(f"task.words = {words}: {1 - lost:.1%} of the spans begin and end with words")
    return task.model_copy(update={"words": Words(words)})


def _tokenizer(config: Config, source: Source, progress: Progress) -> str:
    settings = config.model

    def make() -> str:
        tokenizer = make_tokenizer(settings, source, progress)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return str(tokenizer.to_str())

    if settings.name is not None or settings.vocab is not None:
        return make()  # read from a file, not learned
    learned = (settings.vocab_size, settings.split_cjk, settings.lowercase)
    parts = ("vocabulary with marks", version("tokenizers"), learned, source_content(source))
    return cached_text(cache_key(parts), make)


def checked_data_report(
    run: TrainingRun, prepared: PreparedRun, encoder: TextEncoder
) -> DataReport:
    """Return the data report after checks of targets and the share of unknown tokens.

    Its findings are logged.

    Raises:
        ConfigError: all targets of a regression are equal, or too many tokens are unknown, so the
            vocabulary does not match the texts.
    """
    report = run.world.lead(lambda: _checked_report(run, prepared, encoder))
    for finding in report.findings:
        run.logger.log_text(f"data: {finding}")
        run.progress.note(f"data: {finding}")
    return report


def _checked_report(run: TrainingRun, prepared: PreparedRun, encoder: TextEncoder) -> DataReport:
    sources = run.config.sources()
    task = prepared.task
    names = task.data_names(task.labels)
    report = cached_report(sources, encoder, prepared.tokenizer, names, run.progress)
    values = report.splits["train"].values
    if values is not None and values.smallest == values.largest:
        message = f"expected different targets in train, found {values.smallest:g} in every row"
        raise ConfigError(message, "check data.columns.label")
    rate = report.splits["train"].unknown_rate
    if rate is not None:
        settings = run.config.model
        check_unknown_rate(rate, str(settings.vocab or settings.name or settings.preset))
    return report
