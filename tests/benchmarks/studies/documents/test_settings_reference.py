"""The tables of settings in the documents are those of the settings classes."""

import ast
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field
from typer.main import get_command

from pipework.benchmarks.studies.documents.settings_reference import (
    TRAINING,
    attributes,
    features,
    meanings,
    rows_of,
    section_of,
    values_of,
)
from pipework.cli import app
from pipework.errors import ConfigError
from pipework.git import CHECKOUT
from pipework.settings import Positive, Settings, setting_keys
from pipework.train.config.run_config import Config

# The earlier systems had none of these but the learning rate, which is a part of each schedule.
UNLISTED = {
    *("train.reinit_layers", "train.token_dropout", "train.tf32", "train.optimizer_on_cpu"),
    "train.window_stride",
    "train.learning_rate",
}


class Colour(StrEnum):
    """Values of a setting."""

    RED = "red"
    BLUE = "blue"


class Inner(Settings):
    """A section within a section.

    Attributes:
        colour: of the ball.
        name: of the ball, in two
            lines of text.

    This paragraph is not an attribute.
    """

    colour: Colour = Colour.RED
    name: str | None = None


class Outer(Settings):
    """A section.

    Attributes:
        size: in metres.
        inner: the ball.
    """

    size: Positive
    inner: Inner = Inner()
    depth: int = Field(default=3, description="from the field itself")


class Bare(Settings):
    """A section whose key has no meaning."""

    size: int = 1


def test_every_meaning_is_used_and_written_once():
    keys, documented = set(), set()
    for name in TRAINING:
        keys |= {key.strip("`") for key, *_ in rows_of(section_of(name), f"{name}.")}
        documented |= {f"{name}.{field}" for field in attributes(section_of(name))}
    assert set(meanings()) - keys == set()
    assert set(meanings()) & documented == set()


def test_each_key_of_a_feature_exists_and_each_command_and_option():
    commands = get_command(app).commands
    options = {f"pipe {name}" for name in commands}
    for name, command in commands.items():
        options |= {f"pipe {name} {opt}" for param in command.params for opt in param.opts}
    known = {*setting_keys(Config), *options}
    named = {key for feature in features() for key in feature["keys"]}
    assert named - known == set()
    assert all(feature["keys"] for feature in features())


def test_each_test_of_a_feature_exists():
    for feature in features():
        path, _, name = feature["test"].partition("::")
        tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
        found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert name in found, feature["test"]


def test_every_setting_of_the_training_loop_belongs_to_a_feature():
    named = {key for feature in features() for key in feature["keys"]}
    keys = {key for key in setting_keys(Config) if key.startswith("train.")}
    assert keys - named == UNLISTED


def test_a_row_has_key_values_default_and_meaning():
    assert list(rows_of(Outer, "toy.")) == [
        ("`toy.size`", "integer ≥ 1", "required", "in metres"),
        ("`toy.inner.colour`", "`red`, `blue`", '`"red"`', "of the ball"),
        ("`toy.inner.name`", "text", "", "of the ball, in two lines of text"),
        ("`toy.depth`", "integer", "`3`", "from the field itself"),
    ]


def test_a_key_without_a_meaning_is_an_error():
    with pytest.raises(ConfigError, match=r"toy\.size: expected a meaning, found none"):
        list(rows_of(Bare, "toy."))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (bool, "true or false"),
        (Path | None, "path"),
        (Annotated[float, Field(gt=0, le=1)], "number > 0, ≤ 1"),
        (tuple[Positive, ...], "list of integers ≥ 1"),
        (tuple[float, float], "list of 2 numbers"),
        (
            Literal["equal", "balanced"] | tuple[float, ...],
            "`equal`, `balanced` or list of numbers",
        ),
    ],
)
def test_values_are_described_in_words(annotation, expected):
    assert values_of(annotation) == expected
