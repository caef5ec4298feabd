"""The tables of settings in the documents are those of the settings classes."""

import ast
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field
from typer.main import get_command

from pipework.benchmarks.studies.documents import settings_reference
from pipework.benchmarks.studies.documents.settings_reference import (
    DOCUMENTS,
    MEANINGS,
    TABLES,
    TRAINING,
    attributes,
    features,
    fill,
    main,
    rows_of,
    section_of,
    update,
    values_of,
)
from pipework.cli import app
from pipework.errors import CheckFailedError, ConfigError
from pipework.git import CHECKOUT
from pipework.settings import Positive, Settings, setting_keys
from pipework.train.config.run_config import Config

# The earlier systems had none of these but the learning rate, which is a part of each schedule.
UNLISTED = {
    *("train.reinit_layers", "train.token_dropout", "train.tf32", "train.optimizer_on_cpu"),
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_committed_tables_are_the_generated_ones(name):
    update(CHECKOUT / name, check=True)


@pytest.mark.parametrize(("name", "tables"), DOCUMENTS.items())
def test_each_document_has_its_tables(name, tables):
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    assert [table for table in tables if f"<!-- settings:{table} -->" not in text] == []
    assert set(TABLES) == {table for tables in DOCUMENTS.values() for table in tables}


def test_every_meaning_is_used_and_written_once():
    keys, documented = set(), set()
    for name in TRAINING:
        keys |= {key.strip("`") for key, *_ in rows_of(section_of(name), f"{name}.")}
        documented |= {f"{name}.{field}" for field in attributes(section_of(name))}
    assert set(MEANINGS) - keys == set()
    assert set(MEANINGS) & documented == set()


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


def test_a_changed_table_is_found_and_repaired(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# A\n\n<!-- settings:task -->\n<!-- /settings:task -->\n\nafter\n")
    update(path, check=False)
    filled = path.read_text()
    assert "| `task.kind` | `single_label`, `multi_label`" in filled
    assert filled.endswith("<!-- /settings:task -->\n\nafter\n")
    update(path, check=True)
    path.write_text(filled.replace('`"single_label"`', '`"regression"`'))
    with pytest.raises(CheckFailedError, match="differ from the settings classes"):
        update(path, check=True)
    update(path, check=False)
    assert path.read_text() == filled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- settings:nothing -->\n<!-- /settings:nothing -->", "unknown table"),
        ("<!-- settings:task -->\n", "has no <!-- /settings:task -->"),
    ],
)
def test_a_wrong_marker_is_an_error(text, message):
    with pytest.raises(ConfigError, match=message):
        fill(text)


def test_the_command_exits_with_3_if_a_document_differs(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.md").write_text("<!-- settings:serve -->\nold\n<!-- /settings:serve -->\n")
    monkeypatch.setattr(settings_reference, "CHECKOUT", tmp_path)
    monkeypatch.setattr(settings_reference, "DOCUMENTS", {"a.md": ("serve",)})
    assert main(["--check"]) == 3
    assert "rewrite them: python -P -m" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_a_missing_document_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        update(tmp_path / "absent.md", check=True)
