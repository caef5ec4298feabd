"""What a training run can be told. Each section is owned by the part that uses it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipework.errors import ConfigError
from pipework.examples import Column, Columns, Format, Source
from pipework.manifest import TaskKind
from pipework.settings import Settings, load_settings

RECIPES = Path(__file__).with_name("recipes")
SAMPLE = Path(__file__).with_name("sample")
Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Preset(StrEnum):
    """Sizes trained from scratch: layers x width of the published small BERTs.

    Turc et al. 2019, "Well-Read Students Learn Better", https://arxiv.org/abs/1908.08962.
    """

    TINY = "tiny"
    MINI = "mini"
    SMALL = "small"


class Head(StrEnum):
    """What turns the encoder's states into logits."""

    LINEAR = "linear"


class Metric(StrEnum):
    """By which score on dev the best checkpoint is kept."""

    ACCURACY = "accuracy"
    MACRO_F1 = "macro_f1"


class WantedPrecision(StrEnum):
    """Arithmetic of the forward pass; auto is bf16 where the processor multiplies in it."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


class TaskSettings(Settings):
    """[task]: what is decided.

    `labels` fixes the classes and their order: a list, or a file with a name a line. Without it
    they are the labels of the train file, sorted.
    """

    kind: TaskKind = TaskKind.SINGLE_LABEL
    labels: tuple[str, ...] | Path | None = None
    metric: Metric = Metric.ACCURACY


class ColumnSettings(Settings):
    """[data.columns]: where the fields lie, by name or by number from 0."""

    text: Column = "text"
    text_pair: Column | None = None
    label: Column = "label"


class DataSettings(Settings):
    """[data]: the files, relative to `root` (which is relative to the config file)."""

    root: Path | None = None
    train: Path
    dev: Path
    test: Path | None = None
    format: Format | None = None
    header: bool | None = None
    columns: ColumnSettings = ColumnSettings()

    def splits(self) -> dict[str, Source]:
        """Return the data files by split name."""
        files = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: self.source(path) for name, path in files.items() if path is not None}

    def source(self, path: Path) -> Source:
        """Return a file to be read as this section says; a relative path starts at the root."""
        return Source(
            path=(self.root or Path()) / path,
            columns=Columns(**self.columns.model_dump()),
            format=self.format,
            header=self.header,
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields an input has."""
        return ("text",) if self.columns.text_pair is None else ("text", "text_pair")


class ModelSettings(Settings):
    """[model]: a checkpoint by `name`, or a `preset` trained from scratch.

    `name` is a folder, relative to the config file, or a hub id. `vocab`, like `task.labels`,
    starts at `data.root`.

    A preset learns a WordPiece vocabulary of `vocab_size` from the train texts (more only where
    they hold more characters), or takes `vocab` (a vocab.txt). `split_cjk` makes each Chinese
    character a word of its own, as BERT does; without it, pieces of several characters are learned.
    """

    name: str | None = None
    preset: Preset | None = None
    vocab: Path | None = None
    vocab_size: Positive = 8000
    split_cjk: bool = True
    lowercase: bool = True
    head: Head = Head.LINEAR
    dropout: Fraction = 0.1
    max_length: Annotated[int, Field(ge=3)] = 128

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.name is None) == (self.preset is None):
            message = "expected one of model.name (hub id or folder) and model.preset"
            raise ValueError(message)
        return self


class TrainSettings(Settings):
    """[train]: the loop. `warmup` is a share of all steps; `eval_every` counts steps.

    `token_dropout` is the share of tokens replaced by the mask token at each step, which keeps a
    model trained from scratch on few rows from learning them by heart.
    """

    epochs: Positive = 3
    max_steps: Positive | None = None
    batch_size: Positive = 32
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup: Fraction = 0.1
    label_smoothing: Fraction = 0.0
    token_dropout: Fraction = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    precision: WantedPrecision = WantedPrecision.AUTO
    eval_every: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0


class Config(Settings):
    """A whole run, as kept in its `config.toml`."""

    task: TaskSettings = TaskSettings()
    data: DataSettings
    model: ModelSettings
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _room_for_text(self) -> Self:
        special = 1 + len(self.data.fields)
        if self.model.max_length < special + len(self.data.fields):
            message = (
                f"model.max_length {self.model.max_length} leaves no token of text: "
                f"{special} are special"
            )
            raise ValueError(message)
        return self


def recipes() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def load_config(given: str, overrides: list[str]) -> Config:
    """Read a config file, or a recipe by name, with every path made absolute.

    Raises:
        ConfigError: it is neither, or what it says does not hold.
    """
    known = recipes()
    path = known.get(given, Path(given))
    if given not in known and not path.is_file():
        message = f"{given} is neither a config file nor a recipe"
        raise ConfigError(message, f"recipes: {', '.join(known)}")
    config = load_settings(Config, path, overrides)
    homes = {name: SAMPLE if name == "sample" else None for name in known}
    home = homes.get(given, path.parent)
    return _absolute(config, home, overrides)


def run_config(run: Path) -> Config:
    """Read the resolved config that a run folder keeps."""
    return load_settings(Config, run / "config.toml")


def _absolute(config: Config, home: Path | None, overrides: list[str]) -> Config:
    given = any(override.partition("=")[0].strip() == "data.root" for override in overrides)
    root = config.data.root
    if given and root is not None:
        root = root.absolute()
    elif home is not None:
        root = (home / (root or "")).absolute()
    if root is None:
        message = "this recipe reads files that you have: data.root is not set"
        raise ConfigError(message, f"--set data.root=DIR, the folder with {config.data.train}")
    labels, vocab, name = config.task.labels, config.model.vocab, config.model.name
    if isinstance(labels, Path):
        labels = root / labels
    if vocab is not None:
        vocab = root / vocab
    if name is not None and (folder := (home or Path()) / name).is_dir():
        name = str(folder.absolute())  # else a hub id
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"root": root}),
            "task": config.task.model_copy(update={"labels": labels}),
            "model": config.model.model_copy(update={"vocab": vocab, "name": name}),
        }
    )
