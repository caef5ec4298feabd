"""The search space of `pipe tune`: a config, and the ranges of its settings in [tune]."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from optuna import Trial
from pydantic import TypeAdapter

from pipework.errors import ConfigError
from pipework.settings import setting_keys
from pipework.tasks.registry import task_type
from pipework.train.config.run_config import Config, load_config

EXAMPLE = "for example in [tune]: train.learning_rate = { low = 1e-5, high = 1e-3, log = true }"
SEEDS = ("train.seed", "train.seeds")
BOUNDS = {"low", "high", "log"}
Check = Callable[[str, str], str]  # from a key and a value to the value in the config, as TOML


def toml_value(value: object) -> str:
    """Return a value of a config as TOML; JSON is the same for texts, numbers and lists."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class NumberRange:
    """A setting with a range of numbers, both ends included."""

    key: str
    low: float
    high: float
    log: bool
    integer: bool

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"

    def suggest(self, trial: Trial) -> str:
        """Return the value of a trial as TOML."""
        if self.integer:
            return f"{trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)}"
        return f"{trial.suggest_float(self.key, self.low, self.high, log=self.log)}"

    def checked(self, check: Check) -> "NumberRange":
        """Return the range after a check of its ends."""
        for end in (self.low, self.high):
            check(self.key, f"{int(end) if self.integer else end}")
        return self

    def parameter(self, value: object) -> object:
        """Return the value of a config as a parameter of Optuna; None if it is not in the range."""
        number = isinstance(value, int | float) and self.low <= value <= self.high
        return value if number else None


@dataclass(frozen=True, kw_only=True)
class ChoiceRange:
    """A setting with a list of values, each as TOML."""

    key: str
    choices: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.choices)

    def suggest(self, trial: Trial) -> str:
        """Return the value of a trial as TOML."""
        return str(trial.suggest_categorical(self.key, self.choices))

    def checked(self, check: Check) -> "ChoiceRange":
        """Return the range with its values as they are in the config."""
        return replace(self, choices=tuple(check(self.key, choice) for choice in self.choices))

    def parameter(self, value: object) -> object:
        """Return the value of a config as a parameter of Optuna; None if it is not in the list."""
        return next((choice for choice in self.choices if choice == toml_value(value)), None)


SettingRange = NumberRange | ChoiceRange


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The config of a search, and the ranges of its settings."""

    config: Config
    ranges: tuple[SettingRange, ...]

    @classmethod
    def load(cls, name: str, overrides: Sequence[str]) -> "SearchSpace":
        """Read a config file or a recipe, and check the ranges in its section [tune].

        Raises:
            ConfigError: the config or a range is invalid, or there is no range.
        """
        config = load_config(name, [*overrides])
        task = task_type(config.task.kind)
        if not task.predicts:
            message = "pipe tune needs a classifier or a regression, found task.kind = pretrain"
            raise ConfigError(message, "tune the fine-tuning of the pretrained encoder")
        if config.train.seeds:
            message = "pipe tune has no use for train.seeds: tune.seeds is the number of seeds"
            raise ConfigError(message, "remove it: --set train.seeds=")
        ranges = tuple(
            _range(key, value) for key, value in _flat(config.tune.model_extra or {}).items()
        )
        if not ranges:
            message = f"{name}: [tune] has no ranges of settings"
            raise ConfigError(message, EXAMPLE)
        check = partial(_checked, config, name, overrides)
        return cls(config=config, ranges=tuple(setting.checked(check) for setting in ranges))

    def current(self) -> dict[str, str]:
        """Return the values of the config as TOML, by key; a setting that is absent is empty."""
        values = ((setting.key, _value(self.config, setting.key)) for setting in self.ranges)
        return {key: "" if value is None else toml_value(value) for key, value in values}

    def parameters(self) -> dict[str, object]:
        """Return the values of the config that are in their ranges, as parameters of Optuna."""
        values = {
            setting.key: setting.parameter(_value(self.config, setting.key))
            for setting in self.ranges
        }
        return {key: value for key, value in values.items() if value is not None}


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Return the ranges of nested sections by dotted key."""
    ranges: dict[str, object] = {}
    for name, value in section.items():
        if isinstance(value, dict) and value and not value.keys() & BOUNDS:
            ranges |= _flat(value, f"{prefix}{name}.")
        else:
            ranges[f"{prefix}{name}"] = value
    return ranges


def _range(key: str, value: object) -> SettingRange:
    known = [name for name in setting_keys(Config) if not name.startswith("tune.")]
    if key not in known:
        similar = ", ".join(get_close_matches(key, known, n=3, cutoff=0.5))
        hint = f"did you mean {similar}?" if similar else "see train/README.md for all keys"
        message = f"tune.{key}: unknown key"
        raise ConfigError(message, hint)
    if key in SEEDS:
        message = f"tune.{key}: a seed is no setting to search"
        raise ConfigError(message, "tune.seeds is the number of seeds of the final runs")
    if isinstance(value, list) and len({toml_value(item) for item in value}) == len(value) > 1:
        return ChoiceRange(key=key, choices=tuple(map(toml_value, value)))
    if not isinstance(value, dict):
        expected = "{ low, high } or a list of two or more distinct values"
        message = f"tune.{key}: expected {expected}, found {value!r}"
        raise ConfigError(message, EXAMPLE)
    return _number_range(key, value)


def _number_range(key: str, bounds: Mapping[str, Any]) -> NumberRange:
    low, high, log = (bounds.get(name, False) for name in ("low", "high", "log"))
    kind = _number_type(key)
    if kind is None:
        message = f"tune.{key}: expected a list of values, found {dict(bounds)}"
        raise ConfigError(message, f"{key} is not a number")
    numbers = all(type(end) in (int, kind) for end in (low, high))
    if bounds.keys() - BOUNDS or not numbers or not isinstance(log, bool) or not low < high:
        expected = f"{{ low, high }} with {'integers' if kind is int else 'numbers'}, low < high"
        message = f"tune.{key}: expected {expected}, found {dict(bounds)}"
        raise ConfigError(message, EXAMPLE)
    if log and low <= 0:
        message = f"tune.{key}: a logarithmic range needs low > 0, found {low}"
        raise ConfigError(message, "raise low, or remove log")
    return NumberRange(key=key, low=low, high=high, log=log, integer=kind is int)


def _number_type(key: str) -> type | None:
    """Return int or float for a setting that is a number, else None."""
    section: Any = Config
    *sections, name = key.split(".")
    for part in sections:
        section = section.model_fields[part].annotation
    schema = TypeAdapter(section.model_fields[name].annotation).json_schema()
    types = {alternative.get("type") for alternative in schema.get("anyOf", [schema])}
    return float if "number" in types else int if "integer" in types else None


def _checked(config: Config, name: str, overrides: Sequence[str], key: str, value: str) -> str:
    """Return a value as it is in the config, with an absolute path, as TOML.

    Raises:
        ConfigError: a config with this value is invalid, or has another task or evaluation rows.
    """
    try:
        changed = load_config(name, [*overrides, f"{key}={value}"])
        same = changed.task == config.task and _evaluated(changed) == _evaluated(config)
    except ConfigError as error:
        message = f"tune.{key}: the value {value} cannot be used: {error}"
        raise ConfigError(message, error.hint) from error
    if not same:
        message = f"tune.{key}: the value {value} changes the task, or the rows of dev or test"
        raise ConfigError(message, "trials are compared by the same scores on the same rows")
    task = task_type(config.task.kind)
    if task.rows_per_token and not key.startswith("train."):
        message = f"tune.{key} may change the tokens, and the spans of trials are those of tokens"
        raise ConfigError(message, "search settings of [train] only")
    unfixed = config.task.labels is None and task.fixed_labels is None
    if key.startswith("data.") and unfixed:
        message = f"tune.{key} needs task.labels: other train rows may have other labels"
        raise ConfigError(message, "set task.labels")
    return toml_value(_value(changed, key))


def _evaluated(config: Config) -> list[object]:
    return [source for split, source in config.sources().items() if split != "train"]


def _value(config: Config, key: str) -> object:
    value: Any = config.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return value
