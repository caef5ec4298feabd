"""Prepare a run before its first step: classes, tokenizer, data report, token caches."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import Input, Split
from pipework.scoring.evaluation import label_array
from pipework.tasks.registry import task_type
from pipework.tasks.task import Task
from pipework.text.encoding import TextEncoder
from pipework.text.padding import Padding
from pipework.train.config.run_config import Config
from pipework.train.data.disk_cache import (
    cache_key,
    cached_text,
    data_file_digest,
    digest_values,
    source_content,
)
from pipework.train.data.labels import class_labels
from pipework.train.data.token_cache import JoinedTokens, TokenRows, TokenSet, open_token_cache
from pipework.train.data.tokenizer import SPECIAL_TOKENS, check_unknown_rate, make_tokenizer
from pipework.train.data_report.data_report import DataReport, cached_report
from pipework.train.distill.teacher import Teacher, open_teachers
from pipework.train.loop.distributed import World
from pipework.train.loop.model_inputs import Vocabulary
from pipework.train.model.classifier import Classifier, padding_of
from pipework.train.run_folder import TOKENIZER


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

    def encoder(self, config: Config, model: Classifier) -> TextEncoder:
        """Return the encoder that tokenizes texts for a model."""
        return TextEncoder(
            Tokenizer.from_str(self.tokenizer),
            max_length=config.model.max_length,
            type_ids=padding_of(model).type_ids,
        )


def prepare(config: Config, progress: Progress) -> PreparedRun:
    """Find the classes and the tokenizer; results for unchanged files come from the cache.

    Raises:
        ConfigError: the config does not match the data.
        DataError: a file cannot be read.
    """
    source = config.sources()["train"]
    labels = _labels(config, source, progress)
    kind = config.task.kind
    metric, positive = config.task.metric_for(labels), config.task.positive_for(labels)
    task = task_type(kind)(labels=labels, metric=metric, positive=positive)
    tokenizer = _tokenizer(config, source, progress)
    read = dict(config.sources())
    if (unlabelled := config.data.unlabelled_source()) is not None:
        read["unlabelled"] = unlabelled
    files = {f"the {name} file": data_file_digest(source.path) for name, source in read.items()}
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


def _tokenizer(config: Config, source: Source, progress: Progress) -> str:
    settings = config.model

    def make() -> str:
        if settings.preset is not None and settings.vocab is None:
            progress.note(f"training a vocabulary on {source.path.name}")
        tokenizer = make_tokenizer(settings, source)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return str(tokenizer.to_str())

    if settings.name is not None or settings.vocab is not None:
        return make()  # read from a file, not learned
    learned = (settings.vocab_size, settings.split_cjk, settings.lowercase)
    parts = ("vocabulary", version("tokenizers"), learned, source_content(source))
    return cached_text(cache_key(parts), make)


def checked_data_report(
    config: Config, prepared: PreparedRun, model: Classifier, progress: Progress
) -> DataReport:
    """Return the data report after checks of targets, test labels and the share of unknown tokens.

    Raises:
        ConfigError: all targets of a regression are equal, or too many tokens are unknown, so the
            vocabulary does not match the texts.
        DataError: test has a label that the task lacks.
    """
    sources = config.sources()
    encoder = prepared.encoder(config, model)
    task = prepared.task
    report = cached_report(sources, encoder, prepared.tokenizer, task.labels, progress)
    values = report.splits["train"].values
    if values is not None and values.smallest == values.largest:
        message = f"expected different targets in train, found {values.smallest:g} in every row"
        raise ConfigError(message, "check data.columns.label")
    if "test" in sources and report.splits["test"].labels.keys() - {*task.labels}:
        label_array([*sources["test"].rows()], task, str(sources["test"].path))
    rate = report.splits["train"].unknown_rate
    if rate is not None:
        settings = config.model
        check_unknown_rate(rate, str(settings.vocab or settings.name or settings.preset))
    return report


@dataclass(frozen=True, kw_only=True)
class TokenSets:
    """The token caches for training and evaluation."""

    train: TokenSet
    unlabelled: TokenSet | None
    dev: TokenSet
    vocabulary: Vocabulary

    @property
    def epoch(self) -> TokenRows:
        """The rows of an epoch: labelled rows first, then unlabelled rows."""
        return (
            self.train
            if self.unlabelled is None
            else JoinedTokens(parts=(self.train, self.unlabelled))
        )


def open_token_sets(
    config: Config, prepared: PreparedRun, model: Classifier, world: World, progress: Progress
) -> TokenSets:
    """Open the token caches; the first process of each machine builds missing caches."""
    encoder, sources = prepared.encoder(config, model), config.sources()
    unlabelled = config.data.unlabelled_source()

    def opened(source: Source, task: Task | None) -> TokenSet:
        return open_token_cache(source, prepared.tokenizer, encoder, task, progress)

    train, dev, rest = world.first_on_each_machine(
        lambda: (
            opened(sources["train"], prepared.task),
            opened(sources["dev"], prepared.task),
            None if unlabelled is None else opened(unlabelled, None),
        )
    )
    special_ids = vocabulary(prepared.tokenizer, padding_of(model))
    return TokenSets(train=train, unlabelled=rest, dev=dev, vocabulary=special_ids)


def vocabulary(tokenizer: str, padding: Padding) -> Vocabulary:
    """Return the special ids of a tokenizer, a JSON string."""
    opened = Tokenizer.from_str(tokenizer)
    special = [index for index, token in opened.get_added_tokens_decoder().items() if token.special]
    special += [i for i in map(opened.token_to_id, SPECIAL_TOKENS) if i is not None]
    masks = [opened.token_to_id(token) for token in ("[MASK]", "<mask>")]
    mask_id = next((mask for mask in masks if mask is not None), padding.pad_id)
    return Vocabulary(
        padding=padding, mask_id=mask_id, special_ids=tuple(sorted({*special, padding.pad_id}))
    )


def input_record(out: Path, config: Config, padding: Padding) -> Input:
    """Return how texts are tokenized and padded before they reach the model."""
    return Input(
        fields=config.data.fields,
        tokenizer=record_file(out, out / TOKENIZER),
        max_length=config.model.max_length,
        pad_id=padding.pad_id,
        type_ids=padding.type_ids,
        pad_type_id=padding.pad_type_id,
        pad_left=padding.left,
    )


def splits(config: Config, report: DataReport) -> dict[str, Split]:
    """Return the data files by split name, with the row counts of the data report."""
    return {
        name: Split(
            path=str(source.path),
            sha256=data_file_digest(source.path),
            rows=report.splits[name].rows,
            part=source.part,
        )
        for name, source in config.sources().items()
    }
