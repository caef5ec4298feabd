"""Load a settings file and `--set a.b=c` overrides into one frozen, validated config.

Supported formats: TOML, JSON and INI. In INI and in `--set`, a value that is valid TOML (`3`,
`true`, `[1, 2]`, `"text"`) is parsed as TOML; any other value is plain text. `--set a.b=` removes a
key.
"""

import configparser
import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from pipework.errors import ConfigError

SUFFIXES = (".toml", ".json", ".ini")
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Settings(BaseModel):
    """A frozen section of a config; unknown keys, inf, nan and true as a number are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_as_number(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[str(info.field_name)].annotation
        items = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(item, bool) for item in items) and bool not in (kind, *get_args(kind)):
            message = "expected no boolean"
            raise ValueError(message)
        return value


S = TypeVar("S", bound=Settings)


def load_settings(
    model: type[S],
    path: Path | None,
    overrides: Sequence[str] = (),
    equivalents: Mapping[str, str] | None = None,
) -> S:
    """Read a settings file, if there is one, apply `a.b=c` overrides, and validate.

    `equivalents` are the names that other programs have for keys of `model`.

    Raises:
        ConfigError: the file cannot be read, a key is unknown (the hint lists similar keys, or the
            message equivalent keys), or a value has the wrong type; the message names the key and
            its source.
    """
    mapping = {} if path is None else _read(path)
    for override in overrides:
        _override(mapping, override)
    try:
        return model.model_validate(mapping)
    except ValidationError as error:
        if foreign := _foreign_keys(error.errors(), model, equivalents or {}):
            given = {
                override.partition("=")[0].strip().rpartition(".")[2] for override in overrides
            }
            where = "--set" if path is None or set(foreign) <= given else str(path)
            message = f"{where} has keys of other programs, here: {', '.join(foreign.values())}"
            raise ConfigError(message, f"sections: {', '.join(model.model_fields)}") from error
        raise _explain(error.errors()[0], model, path, overrides) from error


def dump_settings(settings: Settings) -> str:
    """Return a config as TOML, without the keys that are not set."""
    import tomli_w  # noqa: PLC0415  (not in the environment of Triton's models)

    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))


def _read(path: Path) -> dict[str, Any]:
    if path.suffix not in SUFFIXES:
        message = f"{path}: expected a settings file ending in {', '.join(SUFFIXES)}"
        raise ConfigError(message)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 (byte {error.start}: {error.reason})"
        raise ConfigError(message, "save it as UTF-8") from error
    try:
        match path.suffix:
            case ".toml":
                return tomllib.loads(text)
            case ".json":
                return _object(json.loads(text))
            case _:
                return _read_ini(text)
    except (ValueError, RecursionError, configparser.Error) as error:
        message = f"{path} is not valid {path.suffix[1:].upper()}: {error}"
        hint = 'write texts in quotes: name = "value"' if path.suffix == ".toml" else ""
        raise ConfigError(message, hint) from error


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        message = f"expected an object of sections, found {type(value).__name__}"
        raise ValueError(message)  # noqa: TRY004  (an error in the file; the caller adds its path)
    return value


def _read_ini(text: str) -> dict[str, Any]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # keys keep their case
    parser.read_string(text)
    mapping: dict[str, Any] = {}
    for section in parser.sections():
        for key, value in parser[section].items():
            _place(mapping, [*section.split("."), key], _value(value))
    return mapping


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _override(mapping: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        message = f"--set {override}: expected section.key=value"
        raise ConfigError(message, "for example --set train.epochs=3")
    if value.strip():
        _place(mapping, keys, _value(value.strip()))
    else:
        _remove(mapping, keys)


def _remove(mapping: dict[str, Any], keys: Sequence[str]) -> None:
    section: Any = mapping
    for key in keys[:-1]:
        section = section.get(key, {}) if isinstance(section, dict) else {}
    if isinstance(section, dict):
        section.pop(keys[-1], None)


def _place(mapping: dict[str, Any], keys: Sequence[str], value: object) -> None:
    for key in keys[:-1]:
        child = mapping.setdefault(key, {})
        if not isinstance(child, dict):
            message = f"{'.'.join(keys)}: {key} is a value, not a section"
            raise ConfigError(message)
        mapping = child
    mapping[keys[-1]] = value


def _foreign_keys(
    errors: Sequence[ErrorDetails], model: type[BaseModel], equivalents: Mapping[str, str]
) -> dict[str, str]:
    """Return the unknown keys with their equivalents; empty if no key is one of another program."""
    unknown = [str(error["loc"][-1]) for error in errors if error["type"] == "extra_forbidden"]
    if not any(name in equivalents for name in unknown):
        return {}
    own = {key.rpartition(".")[2]: key for key in setting_keys(model)}
    known = {name: equivalents.get(name) or own.get(name) for name in unknown}
    return {name: f"{name} -> {key or '(unknown)'}" for name, key in known.items()}


def setting_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all settings."""
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Settings):
            yield from setting_keys(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _explain(
    error: ErrorDetails, model: type[BaseModel], path: Path | None, overrides: Sequence[str]
) -> ConfigError:
    keys = [str(part) for part in error["loc"]]
    name = ".".join(keys) or "the file"
    set_keys = (override.partition("=")[0].strip() for override in overrides)
    overridden = path is None or any(f"{name}.".startswith(f"{key}.") for key in set_keys)
    where = f"--set {name}" if overridden else f"{path}: {name}"
    if error["type"] == "extra_forbidden":
        known = _known_keys(model, keys[:-1])
        similar = difflib.get_close_matches(keys[-1], known, n=3, cutoff=0.5)
        hint = (
            f"did you mean {', '.join(similar)}?" if similar else f"known keys: {', '.join(known)}"
        )
        message = f"{where}: unknown key"
        return ConfigError(message, hint)
    section = _known_keys(model, keys)
    if error["type"] == "missing" and section:
        return ConfigError(f"{where}: missing section", f"keys of [{name}]: {', '.join(section)}")
    value = error["input"]
    shown = "" if isinstance(value, Mapping) else f", found {value!r}"
    return ConfigError(f"{where}: {error['msg'].removeprefix('Value error, ')}{shown}")


def _known_keys(model: type[BaseModel], keys: Sequence[str]) -> list[str]:
    for key in keys:
        field = model.model_fields.get(key)
        section = None if field is None else field.annotation
        if not isinstance(section, type) or not issubclass(section, BaseModel):
            return []
        model = section
    return list(model.model_fields)
