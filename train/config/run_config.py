"""The config of a training run: load it and resolve its paths."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pipework.data.examples import Source
from pipework.data.text_files import file_head
from pipework.errors import ConfigError
from pipework.run_folder.files import MANIFEST_FILE
from pipework.settings import SUFFIXES, Settings, load_settings
from pipework.train.config.data import UNLABELLED, DataSettings, TaskSettings, read_labels
from pipework.train.config.model import Head, ModelSettings, Preset
from pipework.train.config.train import PretrainSettings, TrainSettings, TuneSettings

RECIPES = Path(__file__).parents[1] / "recipes"
SAMPLE = Path(__file__).parents[1] / "sample"
RATE_FROM_SCRATCH = 5e-4
ENTITY_MARKS = 4  # before and after each of the two entities

SAVED = "train.save_every, or train.keep_every to keep the weights"
EVALUATED = "train.eval_every"
UNNEEDED = "not needed"
# Keys of the Trainer of transformers, its example scripts, and other projects for classification.
EQUIVALENTS = {
    "num_train_epochs": "train.epochs",
    "num_epochs": "train.epochs",
    "per_gpu_train_batch_size": "train.batch_size, over all processes",
    "per_device_train_batch_size": "train.batch_size, over all processes",
    "train_batch_size": "train.batch_size",
    "per_gpu_eval_batch_size": UNNEEDED,
    "per_device_eval_batch_size": UNNEEDED,
    "eval_batch_size": UNNEEDED,
    "gradient_accumulation_steps": "train.accumulate",
    "lr": "train.learning_rate",
    "warmup_ratio": "train.warmup",
    "warmup_proportion": "train.warmup",
    "lr_scheduler_type": "train.schedule",
    "optim": "train.optimizer",
    "adam_epsilon": "train.eps",
    "adam_beta1": "train.betas",
    "adam_beta2": "train.betas",
    "max_grad_norm": "train.clip",
    "label_smoothing_factor": "train.label_smoothing",
    "fp16": 'train.precision = "fp16"',
    "bf16": 'train.precision = "bf16"',
    "torch_compile": "train.compile",
    "save_steps": SAVED,
    "save_strategy": SAVED,
    "save_total_limit": "train.keep",
    "save_checkpoints_steps": SAVED,
    "eval_steps": EVALUATED,
    "eval_strategy": EVALUATED,
    "evaluation_strategy": EVALUATED,
    "evaluate_during_training": EVALUATED,
    "metric_for_best_model": "task.metric",
    "load_best_model_at_end": UNNEEDED,
    "require_improvement": "train.early_stop",
    "logging_steps": UNNEEDED,
    "logging_dir": UNNEEDED,
    "report_to": UNNEEDED,
    "do_train": "pipe train",
    "do_eval": "pipe eval",
    "do_predict": "pipe predict",
    "output_dir": "--out",
    "save_path": "--out",
    "overwrite_output_dir": UNNEEDED,
    "overwrite_cache": UNNEEDED,
    "cache_dir": UNNEEDED,
    "local_rank": "--nproc",
    "no_cuda": UNNEEDED,
    "data_dir": "data.root",
    "train_file": "data.train",
    "train_path": "data.train",
    "validation_file": "data.dev",
    "dev_path": "data.dev",
    "test_file": "data.test",
    "test_path": "data.test",
    "max_train_samples": "data.rows",
    "task_name": "the recipe, or task.kind",
    "num_labels": "task.labels",
    "class_list": "task.labels",
    "model_type": "model.name, whose config.json has it, or model.family with model.preset",
    "model_name_or_path": "model.name",
    "bert_path": "model.name",
    "config_name": "model.name",
    "tokenizer_name": "model.name",
    "vocab_path": "model.vocab",
    "do_lower_case": "model.lowercase",
    "max_seq_length": "model.max_length",
    "max_seq_len": "model.max_length",
    "pad_size": "model.max_length",
    "num_filters": "model.cnn.filters",
    "hidden_size": "model.rnn.hidden",
    "num_layers": "model.rnn.layers",
}


class Config(Settings):
    """The config of a run, as stored in its `config.toml`, without the section [tune]."""

    task: TaskSettings = TaskSettings()
    data: DataSettings
    model: ModelSettings
    train: TrainSettings = TrainSettings()
    pretrain: PretrainSettings = PretrainSettings()
    tune: Annotated[TuneSettings, Field(exclude=True)] = TuneSettings()

    @model_validator(mode="before")
    @classmethod
    def _rate_from_scratch(cls, values: Any) -> Any:  # noqa: ANN401  (before validation)
        """Add the default learning rate of a model that is trained from scratch."""
        model, train = values.get("model"), values.get("train", {})
        if isinstance(model, dict) and isinstance(train, dict) and model.get("preset"):
            return {**values, "train": {"learning_rate": RATE_FROM_SCRATCH, **train}}
        return values

    @model_validator(mode="after")
    def _room_for_text(self) -> Self:
        texts = 1 + ("text_pair" in self.data.fields)
        special = 1 + texts + (ENTITY_MARKS if self.data.entities else 0)
        if self.model.max_length < special + texts:
            message = (
                f"model.max_length {self.model.max_length} leaves no token for the text: "
                f"{special} are special tokens"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _distinct_columns(self) -> Self:
        columns = self.data.columns.model_dump(exclude_none=True)
        if not self.task.type.predicts:
            columns = {"text": self.data.columns.text}
        if isinstance(columns.get("label"), tuple):
            columns |= {f"label {name}": name for name in columns.pop("label")}
        by_column = {column: field for field, column in columns.items()}
        for field, column in columns.items():
            if by_column[column] != field:
                both = f"data.columns.{field} and data.columns.{by_column[column]}"
                message = f"{both} are the same column, {column!r}"
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _calibration_has_a_use(self) -> Self:
        data, kind = self.data, self.task.type
        used = kind.has_labels or kind.has_values
        if not used and (data.calibration is not None or data.calibration_rows is not None):
            message = "data.calibration needs a task with labels or targets"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _fit_for_a_linear_model(self) -> Self:
        if self.model.preset is not Preset.LINEAR:
            return self
        if self.train.teacher:
            message = "model.preset linear learns only from labels: remove train.teacher"
            raise ValueError(message)
        if self.train.class_weights not in ("equal", "balanced"):
            message = "model.preset linear has train.class_weights equal or balanced, found numbers"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.model.freeze and self.train.token_dropout:
            message = "train.token_dropout needs an encoder that is trained: remove model.freeze"
            raise ValueError(message)
        if self.data.unlabelled is not None and (self.model.freeze or not self.train.teacher):
            message = "data.unlabelled needs a train.teacher and an encoder that is not frozen"
            raise ValueError(message)
        if self.train.reinit_layers and (self.model.freeze or self.model.name is None):
            message = "train.reinit_layers needs a pretrained model.name that is not frozen"
            raise ValueError(message)
        single = (*self.data.fields,) == ("text",)
        if self.train.window_stride is not None and (self.train.teacher or not single):
            message = "train.window_stride is for single texts without a train.teacher"
            raise ValueError(message)
        weighted = self.train.class_weights != "equal" or self.train.label_smoothing
        if self.task.type.has_values and weighted:
            message = "train.class_weights and train.label_smoothing do not apply to a regression"
            raise ValueError(message)
        if self.model.head is Head.ENTITY and not self.data.entities:
            message = (
                "model.head entity needs data with entities: set data.marked, "
                "data.columns.entities or data.format semeval"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _fit_for_tokens(self) -> Self:
        if not self.task.type.rows_per_token:
            return self
        if self.train.teacher:
            message = "train.teacher needs a task with one prediction for each text"
            raise ValueError(message)
        if (*self.data.fields,) != ("text",):
            message = "spans are those of single texts: remove text_pair and entities"
            raise ValueError(message)
        if self.model.head is not Head.LINEAR:
            message = f"model.head {self.model.head} has no logits for each token: use linear"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _fit_for_pretraining(self) -> Self:
        if self.task.type.predicts:
            if self.data.format in UNLABELLED:
                message = f"format {self.data.format} has no labels: set task.kind to pretrain"
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
            "train.window_stride": train.window_stride is not None,
        }
        present = [name for name, is_set in misplaced.items() if is_set]
        if present:
            message = f"{present[0]} applies only to classifiers, not to task.kind pretrain"
            raise ValueError(message)
        return self

    def sources(self) -> dict[str, Source]:
        """Return the data files, or parts of them, by split name."""
        labels = self.task.labels
        if isinstance(labels, Path):
            labels = read_labels(labels)
        return self.data.splits(self.task.kind, labels or ())


def recipes() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def is_config(name: str) -> bool:
    """Return whether a name is a recipe or a settings file, and not a JSON array of rows."""
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return not file_head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return name in recipes() or path.suffix in SUFFIXES


def load_config(name: str, overrides: list[str]) -> Config:
    """Read a config file, or a recipe by name, and make all paths absolute.

    Raises:
        ConfigError: `name` is neither, or the config is invalid.
    """
    known = recipes()
    path = known.get(name, Path(name))
    if name not in known and not path.is_file():
        raise _unknown_config(path, tuple(known))
    config = load_settings(Config, path, overrides, EQUIVALENTS)
    homes = {recipe: SAMPLE if recipe == "sample" else None for recipe in known}
    home = homes.get(name, path.parent)
    return _absolute(config, home, overrides)


def _unknown_config(path: Path, known: tuple[str, ...]) -> ConfigError:
    if path.suffix != ".toml":
        message = f"{path} is neither a config file nor a recipe"
        return ConfigError(message, f"recipes: {', '.join(known)}")
    present = sorted(file.name for file in path.parent.glob("*.toml"))
    similar = get_close_matches(path.name, present, n=1) or present[:5]
    found = ", ".join(str(path.with_name(name)) for name in similar) or "none"
    return ConfigError(f"config file {path} does not exist", f"similar config files: {found}")


def _checkpoint(folder: Path) -> Path:
    """Return the checkpoint of a finished run folder; any other folder is returned unchanged."""
    own = folder / "checkpoint"
    return own if own.is_dir() and (folder / MANIFEST_FILE).is_file() else folder


def run_config(run: Path) -> Config:
    """Read the resolved config of a run folder."""
    return load_settings(Config, run / "config.toml")


def _absolute(config: Config, home: Path | None, overrides: list[str]) -> Config:
    overridden = {override.partition("=")[0].strip() for override in overrides}
    root = config.data.root
    if "data.root" in overridden and root is not None:
        root = root.absolute()
    elif home is not None:
        root = (home / (root or "")).absolute()
    if root is None:
        message = "this recipe reads your own data files: data.root is not set"
        raise ConfigError(message, f"--set data.root=DIR, the folder with {config.data.train}")
    labels, vocab, name = config.task.labels, config.model.vocab, config.model.name
    if isinstance(labels, Path):
        labels = root / labels
    if vocab is not None:
        typed = "model.vocab" in overridden and vocab.is_file()  # from the current folder
        vocab = vocab.absolute() if typed else root / vocab
    parents = (home or Path(), *([Path()] if "model.name" in overridden else []))
    folders = [parent / name for parent in parents if name and (parent / name).is_dir()]
    if folders:
        name = str(_checkpoint(folders[0].absolute()))  # else it is a hub id
    teacher_root = Path() if home is None or "train.teacher" in overridden else home
    teacher = tuple((teacher_root / run).absolute() for run in config.train.teacher)
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"teacher": teacher}),
            "data": config.data.model_copy(update={"root": root}),
            "task": config.task.model_copy(update={"labels": labels}),
            "model": config.model.model_copy(update={"vocab": vocab, "name": name}),
        }
    )
