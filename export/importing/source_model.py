"""An opened source of an import: its model, tokenizer and task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from pipework.errors import ConfigError
from pipework.export.importing.adapters import find_file
from pipework.export.publish.folder import PUBLISHED_FILE, PublishedModel
from pipework.progress import counted
from pipework.run_folder.engine_record import Precision
from pipework.run_folder.files import MANIFEST_FILE
from pipework.run_folder.manifest import SourceKind, read_classifier
from pipework.tasks.task import Task
from pipework.train.model import checkpoint
from pipework.train.model.classifier import Classifier

USUAL_LENGTH = 512  # tokens; the proof of longer inputs takes minutes, so they need a setting


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """An opened source.

    Attributes:
        kind: the kind of source.
        name: its folder or hub id.
        classifier: the model that is copied into the run folder.
        tokenizer: its tokenizer.
        tokenizer_name: the folder or hub id with the files of the tokenizer.
        reopen: opens the source again, as other programs do, without changing its weights.
        task: kind, labels and metric; a multi-label task without thresholds.
        type_ids: whether the source distinguishes the texts of a pair by type ids.
        longest: the largest number of tokens of an input; None if the model has no limit.
        published: what `pipe publish` wrote into the source; None for other sources.
        precision: the precision that the source computes in.
        findings: what to know about the source, for the manifest.
        custom_code: the digests of the Python files of the source that were executed, by name.
    """

    kind: SourceKind
    name: str
    classifier: Classifier
    tokenizer: Tokenizer
    tokenizer_name: str
    reopen: Callable[[], torch.nn.Module]
    task: Task
    type_ids: bool
    longest: int | None
    published: PublishedModel | None
    precision: Precision = Precision.FP32
    findings: tuple[str, ...] = ()
    custom_code: Mapping[str, str] = field(default_factory=dict)

    @property
    def pair(self) -> bool | None:
        """Whether an input is two texts; None if unknown."""
        if self.published is not None:
            return "text_pair" in self.published.fields
        return True if self.kind is SourceKind.CROSS_ENCODER else None

    def max_length(self, wanted: int | None) -> int:
        """Return the maximum number of tokens of an input.

        Raises:
            ConfigError: the model has fewer positions than `wanted`.
        """
        if wanted is not None and self.longest is not None and wanted > self.longest:
            message = (
                f"max_length {wanted}: {self.name!r} takes at most {counted(self.longest, 'token')}"
            )
            raise ConfigError(message, "lower max_length")
        usual = USUAL_LENGTH if self.published is None else self.published.max_length
        return wanted or min(self.longest or usual, usual)


def published_model(name: str) -> PublishedModel | None:
    """Return what pipework recorded of a published folder or of the checkpoint of a run."""
    file = find_file(name, PUBLISHED_FILE)
    if file is not None:
        return PublishedModel.read(file)
    run = Path(name).absolute().parent
    if (run / MANIFEST_FILE).is_file() and Path(name).name == checkpoint.FOLDER:
        return PublishedModel.of(read_classifier(run), ())
    return None
