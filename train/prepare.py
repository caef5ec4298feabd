"""What a run needs before its first step: classes, tokenizer, data report, token caches."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer

from pipework.data.examples import Source
from pipework.progress import Progress
from pipework.run_folder.task import Task
from pipework.text.encoding import TextEncoder
from pipework.text.padding import Padding
from pipework.train.config.run_config import Config
from pipework.train.data.disk_cache import digest, digest_of, name_of, recalled
from pipework.train.data.labels import class_labels
from pipework.train.data.token_cache import Joined, Tokens, TokenSet, token_set
from pipework.train.data.tokenizer import SPECIAL, check_unknown_rate, make_tokenizer
from pipework.train.data_report.data_report import DataReport, cached_report
from pipework.train.distill.teacher import Teacher, open_teachers
from pipework.train.loop.distributed import World
from pipework.train.loop.model_inputs import Vocabulary
from pipework.train.model.classifier import Classifier, padding_of


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the first process finds out for all.

    Attributes:
        task: what is decided.
        tokenizer: as JSON.
        teachers: whose answers are learned too.
        fingerprint: digests of what is learned from, by name: a run goes on with the same only.
    """

    task: Task
    tokenizer: str
    teachers: tuple[Teacher, ...]
    fingerprint: dict[str, str]

    def encoder(self, config: Config, model: Classifier) -> TextEncoder:
        """Return what turns texts into ids for a model."""
        return TextEncoder(
            Tokenizer.from_str(self.tokenizer),
            max_length=config.model.max_length,
            type_ids=padding_of(model).type_ids,
        )


def prepare(config: Config, progress: Progress) -> Prepared:
    """Find the classes and the tokenizer; what was found before for the same files is recalled.

    Raises:
        ConfigError: the config does not fit the data.
        DataError: a file cannot be read.
    """
    source = config.sources()["train"]
    labels = _labels(config, source, progress)
    kind = config.task.kind
    task = Task(kind=kind, labels=labels, metric=config.task.metric_for(labels))
    tokenizer = _tokenizer(config, source, progress)
    read = dict(config.sources())
    if (unlabelled := config.data.unlabelled_source()) is not None:
        read["unlabelled"] = unlabelled
    files = {f"the {name} file": digest(one.path) for name, one in read.items()}
    teachers = open_teachers(config.train.teacher, task, config.data.fields)
    files |= {f"the teacher {teacher.name}": teacher.digest for teacher in teachers}
    learned = {"the labels": digest_of(labels), "the tokenizer": digest_of([tokenizer])}
    return Prepared(
        task=task, tokenizer=tokenizer, teachers=teachers, fingerprint={**files, **learned}
    )


def _labels(config: Config, source: Source, progress: Progress) -> tuple[str, ...]:
    given = config.task.labels
    named = digest(given) if isinstance(given, Path) else given
    parts = ("labels", config.task.kind, named, _content(source))

    def make() -> str:
        progress.note(f"reading the labels of {source.path.name}")
        return json.dumps(class_labels(config.task.labels, source))

    return tuple(json.loads(recalled(name_of(parts), make)))


def _content(source: Source) -> tuple[object, ...]:
    """Return what decides the rows of a source."""
    return source.reading(), source.part, digest(source.path)


def _tokenizer(config: Config, source: Source, progress: Progress) -> str:
    settings = config.model

    def make() -> str:
        if settings.preset is not None and settings.vocab is None:
            progress.note(f"learning a vocabulary from {source.path.name}")
        tokenizer = make_tokenizer(settings, source)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return str(tokenizer.to_str())

    if settings.name is not None or settings.vocab is not None:
        return make()  # read, not learned
    learned = (settings.vocab_size, settings.split_cjk, settings.lowercase)
    parts = ("vocabulary", version("tokenizers"), learned, _content(source))
    return recalled(name_of(parts), make)


def look(config: Config, found: Prepared, model: Classifier, progress: Progress) -> DataReport:
    """Return the data report, and refuse a vocabulary that does not know the texts.

    Raises:
        ConfigError: so many tokens are unknown that the vocabulary is another language's.
    """
    sources = config.sources()
    encoder = found.encoder(config, model)
    task = found.task
    report = cached_report(sources, encoder, found.tokenizer, task.labels, progress)
    rate = report.splits["train"].unknown_rate
    if rate is not None:
        given = config.model
        check_unknown_rate(rate, str(given.vocab or given.name or given.preset))
    return report


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The token caches that a process learns from and is judged by."""

    train: TokenSet
    unlabelled: TokenSet | None
    dev: TokenSet
    vocabulary: Vocabulary

    @property
    def learned(self) -> Tokens:
        """The rows of an epoch: those with a label, and behind them those without."""
        return (
            self.train if self.unlabelled is None else Joined(parts=(self.train, self.unlabelled))
        )


def open_rows(
    config: Config, found: Prepared, model: Classifier, world: World, progress: Progress
) -> Rows:
    """Open the token caches, which the first process of each machine builds where they lack."""
    encoder, sources = found.encoder(config, model), config.sources()
    unlabelled = config.data.unlabelled_source()

    def opened(source: Source, task: Task | None) -> TokenSet:
        return token_set(source, found.tokenizer, encoder, task, progress)

    train, dev, rest = world.first_on_each_machine(
        lambda: (
            opened(sources["train"], found.task),
            opened(sources["dev"], found.task),
            None if unlabelled is None else opened(unlabelled, None),
        )
    )
    known = vocabulary(found.tokenizer, padding_of(model))
    return Rows(train=train, unlabelled=rest, dev=dev, vocabulary=known)


def vocabulary(tokenizer: str, padding: Padding) -> Vocabulary:
    """Return what is special among the ids of a tokenizer, which is JSON."""
    opened = Tokenizer.from_str(tokenizer)
    special = [index for index, token in opened.get_added_tokens_decoder().items() if token.special]
    special += [i for i in map(opened.token_to_id, SPECIAL) if i is not None]
    masks = [opened.token_to_id(token) for token in ("[MASK]", "<mask>")]
    mask_id = next((mask for mask in masks if mask is not None), padding.pad_id)
    return Vocabulary(
        padding=padding, mask_id=mask_id, special_ids=tuple(sorted({*special, padding.pad_id}))
    )
