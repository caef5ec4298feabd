"""The tables of settings in the package documents, generated from the settings classes.

The meaning of a key is read from the `Attributes` section of its class. The sections of the
training config explain their keys in prose that also gives the reasons, so `training_keys.toml`
has their meanings for the table. `training_features.toml` has the features.
"""

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipework.benchmarks.studies.documents.study_tables import markdown
from pipework.errors import ConfigError
from pipework.export.config import TOLERANCES, ExportSettings, RoundedToleranceSettings
from pipework.run_folder.engine_record import Tolerance
from pipework.serve.config import ServeSettings
from pipework.settings import Settings
from pipework.tasks.registry import TASKS, Kind, kind_of
from pipework.train.config.run_config import Config

ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
SCALARS = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    ByteSize: "bytes",
}
KIND_CHECK = get_args(Kind)[1]  # the validator of a name of a kind of task
BOUNDS = (
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "≤"),
    (annotated_types.Lt, "lt", "<"),
)
TRAINING = ("task", "data", "model", "train", "pretrain", "tune")


def section_of(name: str) -> type[Settings]:
    """Return the class of a section of the training config."""
    section = Config.model_fields[name].annotation
    if not _is_section(section):
        message = f"[{name}] is not a section of the training config"
        raise ConfigError(message)
    return section


def rows_of(section: type[Settings], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield key, values, default and meaning of each setting, sections within it included."""
    bases = [base for base in reversed(section.mro()) if _is_section(base)]
    documented = {name: text for base in bases for name, text in attributes(base).items()}
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        if key == "tolerances":  # a table of its own
            continue
        if _is_section(field.annotation):
            yield from rows_of(field.annotation, f"{key}.")
            continue
        meaning = field.description or documented.get(name) or meanings().get(key)
        if meaning is None:
            message = f"{key}: expected a meaning, found none"
            raise ConfigError(message, f"document it under Attributes in {section.__name__}")
        yield f"`{key}`", values_of(field.annotation, field.metadata), _default(field), meaning


def attributes(documented: type[BaseModel]) -> dict[str, str]:
    """Return the entries of the `Attributes` section of a class docstring, by field name."""
    _, _, section = (inspect.getdoc(documented) or "").partition("\nAttributes:\n")
    entries = ATTRIBUTE.findall(section)
    return {name: " ".join(text.split()).removesuffix(".") for name, text in entries}


def values_of(annotation: Any, metadata: Iterable[object] = ()) -> str:  # noqa: ANN401
    """Describe the values of a type: `integer ≥ 1`, `list of paths`, or the words of an enum."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values_of(arguments[0], [*metadata, *arguments[1:]])
    if origin in (Union, UnionType):
        kinds = (values_of(kind) for kind in arguments if kind is not NoneType)
        return " or ".join(dict.fromkeys(kinds))
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"list of {count}{_plural(values_of(arguments[0]))}"
    words = arguments if origin is Literal else _words(annotation)
    if KIND_CHECK in metadata:
        words = tuple(map(kind_of, TASKS))
    if words:
        return ", ".join(f"`{word}`" for word in words)
    return SCALARS[annotation] + _bounds(metadata)


def _plural(values: str) -> str:
    kind, space, bounds = values.partition(" ")
    return f"{kind}s{space}{bounds}"


def _words(annotation: object) -> tuple[str, ...]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member.value) for member in annotation)
    return ()


def _bounds(metadata: Iterable[object]) -> str:
    flat = [bound for item in metadata for bound in getattr(item, "metadata", (item,))]
    limits = (
        f"{sign} {getattr(bound, name)}"
        for bound in flat
        for kind, name, sign in BOUNDS
        if isinstance(bound, kind)
    )
    text = ", ".join(limits)
    return f" {text}" if text else ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)


def _is_section(annotation: object) -> TypeGuard[type[Settings]]:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def _settings(rows: Iterable[tuple[str, str, str, str]]) -> str:
    return markdown(("key", "type or values", "default", "meaning"), rows)


def _tolerances() -> str:
    meanings, tables = attributes(Tolerance), TOLERANCES.values()
    rows = []
    for limit in RoundedToleranceSettings.model_fields:
        values = (getattr(table, limit) for table in tables)
        numbers = ("" if value is None else f"{value:g}" for value in values)
        rows.append((f"`{limit}`", *numbers, meanings[limit]))
    return markdown(("limit", *TOLERANCES, "meaning"), rows)


def meanings() -> dict[str, str]:
    """Return the meanings of the training keys that no class documents."""
    path = Path(__file__).with_name("training_keys.toml")
    return {str(key): str(text) for key, text in tomllib.loads(path.read_text("utf-8")).items()}


def features() -> list[dict[str, Any]]:
    """Return the features of training: name, keys, and the test as path::name."""
    path = Path(__file__).with_name("training_features.toml")
    return [*tomllib.loads(path.read_text(encoding="utf-8"))["feature"]]


def _features() -> str:
    rows = []
    for feature in features():
        path, _, test = feature["test"].partition("::")
        keys = ", ".join(f"`{key}`" for key in feature["keys"])
        rows.append((feature["name"], keys, f"[{test}](../{path})"))
    return markdown(("feature", "config key or option", "test"), rows)


def _train(name: str) -> Callable[[], str]:
    return lambda: _settings(rows_of(section_of(name), f"{name}."))


TABLES: Mapping[str, Callable[[], str]] = {
    **{name: _train(name) for name in TRAINING},
    "features": _features,
    "export": lambda: _settings(rows_of(ExportSettings)),
    "tolerances": _tolerances,
    "serve": lambda: _settings(rows_of(ServeSettings)),
}
