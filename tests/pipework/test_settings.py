import pytest

from pipework.errors import ConfigError
from pipework.settings import Settings, dump_settings, load_settings


class Inner(Settings):
    epochs: int = 1
    rate: float = 0.1


class Outer(Settings):
    name: str
    train: Inner = Inner()
    tags: tuple[str, ...] = ()


FORMS = {
    ".toml": 'name = "a"\ntags = ["x", "y"]\n[train]\nepochs = 3\n',
    ".json": '{"name": "a", "tags": ["x", "y"], "train": {"epochs": 3}}',
}


@pytest.mark.parametrize("suffix", FORMS)
def test_each_file_format_gives_the_same_config(tmp_path, suffix):
    path = tmp_path / f"c{suffix}"
    path.write_text(FORMS[suffix])
    assert load_settings(Outer, path) == Outer(name="a", tags=("x", "y"), train=Inner(epochs=3))


class Nested(Settings):
    train: Inner = Inner()


def test_ini_values_are_read_as_toml_and_keep_percent_signs(tmp_path):
    path = tmp_path / "c.ini"
    path.write_text("[train]\nepochs = 3\nrate = 0.5\n")
    assert load_settings(Nested, path) == Nested(train=Inner(epochs=3, rate=0.5))


def test_overrides_win_and_are_typed(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(FORMS[".toml"])
    config = load_settings(Outer, path, ["train.rate=1e-3", "name=some thing", 'tags=["z"]'])
    assert (config.train.rate, config.name, config.tags) == (1e-3, "some thing", ("z",))


def test_an_override_without_a_value_removes_a_key(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(FORMS[".toml"])
    removed = ["train.epochs=", "tags=", "train.rate=", "other.key=", "name.key="]
    assert load_settings(Outer, path, removed) == Outer(name="a")
    assert load_settings(Outer, path, ["train=", 'name=""']) == Outer(name="", tags=("x", "y"))


def test_an_unknown_key_is_reported_with_similar_keys(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('name = "a"\n[train]\nepoch = 3\n')
    with pytest.raises(ConfigError, match=r"c\.toml: train\.epoch: unknown key") as caught:
        load_settings(Outer, path)
    assert caught.value.hint == "did you mean epochs?"


class Switches(Settings):
    rates: tuple[float, ...] | float = 0.1
    dropout: bool | None = None


@pytest.mark.parametrize("value", ["true", "[0.5, true]"])
def test_true_is_no_number_also_in_a_list(value):
    assert load_settings(Switches, None, ["dropout=true"]).dropout is True
    with pytest.raises(ConfigError, match=r"--set rates: expected no boolean, found .*True"):
        load_settings(Switches, None, [f"rates={value}"])


def test_a_dumped_config_reads_back(tmp_path):
    config = Outer(name='with "quotes"', tags=("x",), train=Inner(epochs=7))
    path = tmp_path / "c.toml"
    path.write_text(dump_settings(config), encoding="utf-8")
    assert load_settings(Outer, path) == config
