"""What a training run can be told. Each section is owned by the part that uses it."""

from pathlib import Path
from typing import Self

from pydantic import model_validator

from pipework.data.examples import Source
from pipework.errors import ConfigError
from pipework.run_folder.files import FILE_NAME
from pipework.run_folder.task import TaskKind
from pipework.settings import Settings, load_settings
from pipework.train.config.data import UNLABELLED, DataSettings, TaskSettings
from pipework.train.config.model import Head, ModelSettings
from pipework.train.config.train import PretrainSettings, TrainSettings

RECIPES = Path(__file__).parents[1] / "recipes"
SAMPLE = Path(__file__).parents[1] / "sample"
ENTITY_MARKS = 4  # before and after each of the two


class Config(Settings):
    """A whole run, as kept in its `config.toml`."""

    task: TaskSettings = TaskSettings()
    data: DataSettings
    model: ModelSettings
    train: TrainSettings = TrainSettings()
    pretrain: PretrainSettings = PretrainSettings()

    @model_validator(mode="after")
    def _room_for_text(self) -> Self:
        texts = 1 + ("text_pair" in self.data.fields)
        special = 1 + texts + (ENTITY_MARKS if self.data.entities else 0)
        if self.model.max_length < special + texts:
            message = (
                f"model.max_length {self.model.max_length} leaves no token of text: "
                f"{special} are special"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.model.freeze and self.train.token_dropout:
            message = "train.token_dropout replaces tokens, and with model.freeze none is read"
            raise ValueError(message)
        if self.data.unlabelled is not None and (self.model.freeze or not self.train.teacher):
            message = "data.unlabelled needs a train.teacher, and an encoder that is not frozen"
            raise ValueError(message)
        if self.train.reinit_layers and (self.model.freeze or self.model.name is None):
            message = "train.reinit_layers are layers of model.name that train; a preset's are new"
            raise ValueError(message)
        weighed = self.train.class_weights != "equal" or self.train.label_smoothing
        if self.task.kind is TaskKind.REGRESSION and weighed:
            message = (
                "train.class_weights and train.label_smoothing are of classes; a number has none"
            )
            raise ValueError(message)
        if self.model.head is Head.ENTITY and not self.data.entities:
            message = (
                "model.head entity reads two entities, and the data have none: set data.marked, "
                "data.columns.entities or data.format"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _fit_for_pretraining(self) -> Self:
        if self.task.kind is not TaskKind.PRETRAIN:
            if self.data.format in UNLABELLED:
                message = f"a file of format {self.data.format} has no labels to learn"
                raise ValueError(message)
            return self
        data, train = self.data, self.train
        misplaced = {
            "model.head": self.model.head is not Head.LINEAR,
            "model.freeze": self.model.freeze,
            "data.columns.text_pair": data.columns.text_pair is not None,
            "data.columns.entities": data.entities,
            "train.token_dropout": train.token_dropout > 0,
            "train.label_smoothing": train.label_smoothing > 0,
            "train.class_weights": train.class_weights != "equal",
            "train.teacher": bool(train.teacher),
            "train.reinit_layers": train.reinit_layers > 0,
        }
        found = [name for name, given in misplaced.items() if given]
        if found:
            message = f"{found[0]} is of classifiers: task.kind pretrain has none"
            raise ValueError(message)
        return self

    def sources(self) -> dict[str, Source]:
        """Return the data files, or parts of them, by split name."""
        return self.data.splits(self.task.kind)


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


def _checkpoint(folder: Path) -> Path:
    """Return the checkpoint of a folder that is a finished run's, else the folder itself."""
    own = folder / "checkpoint"
    return own if own.is_dir() and (folder / FILE_NAME).is_file() else folder


def run_config(run: Path) -> Config:
    """Read the resolved config that a run folder keeps."""
    return load_settings(Config, run / "config.toml")


def _absolute(config: Config, home: Path | None, overrides: list[str]) -> Config:
    given = {override.partition("=")[0].strip() for override in overrides}
    root = config.data.root
    if "data.root" in given and root is not None:
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
    places = (home or Path(), *([Path()] if "model.name" in given else []))
    folders = [place / name for place in places if name and (place / name).is_dir()]
    if folders:
        name = str(_checkpoint(folders[0].absolute()))  # else a hub id
    beside = Path() if home is None or "train.teacher" in given else home
    teacher = tuple((beside / run).absolute() for run in config.train.teacher)
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"teacher": teacher}),
            "data": config.data.model_copy(update={"root": root}),
            "task": config.task.model_copy(update={"labels": labels}),
            "model": config.model.model_copy(update={"vocab": vocab, "name": name}),
        }
    )
