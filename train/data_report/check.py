"""The data report of a config, with the tokenizer it would use, or of files alone."""

from collections.abc import Sequence
from pathlib import Path

from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.run_folder.task import TaskKind
from pipework.settings import SUFFIXES
from pipework.text.encoding import TextEncoder
from pipework.train.config.data import ColumnSettings
from pipework.train.config.run_config import load_config, recipes
from pipework.train.data.labels import class_labels
from pipework.train.data.tokenizer import make_tokenizer
from pipework.train.data_report.data_report import WHOLE, DataReport, data_report


def is_config(name: str) -> bool:
    """Whether a name is a recipe's or a settings file's."""
    return name in recipes() or Path(name).suffix in SUFFIXES


def check_config(name: str, overrides: list[str], progress: Progress) -> DataReport:
    """Report on the files of a config, tokenized as training would.

    Raises:
        PipeError: for a config or data that cannot be used.
    """
    config = load_config(name, overrides)
    sources = config.sources()
    labels = class_labels(config.task.labels, sources["train"])
    tokenizer = make_tokenizer(config.model, sources["train"])
    whole = config.task.kind is TaskKind.PRETRAIN  # long texts are cut into several, and none lost
    length = WHOLE if whole else config.model.max_length
    encoder = TextEncoder(tokenizer, max_length=length, type_ids=False)
    return data_report(sources, encoder, labels, progress)


def check_files(paths: Sequence[Path], overrides: Sequence[str], progress: Progress) -> DataReport:
    """Report on files alone; `columns.NAME=COLUMN` says where their fields lie.

    Raises:
        PipeError: for an override that names no column, or a file that cannot be read.
    """
    given: dict[str, str | int] = {}
    for override in overrides:
        key, _, column = override.partition("=")
        name = key.removeprefix("data.").removeprefix("columns.")
        if name not in ColumnSettings.model_fields:
            message = f"--set {override}: beside files only columns can be set"
            raise ConfigError(message, "for example --set columns.text=0 --set columns.label=1")
        given[name] = int(column) if column.isdecimal() else column
    columns = Columns(**ColumnSettings.model_validate(given).model_dump())
    sources = {str(path): Source(path=path, columns=columns) for path in paths}
    return data_report(sources, None, None, progress)
