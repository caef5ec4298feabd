import pytest

from pipework.errors import ConfigError
from pipework.settings import dump_settings
from pipework.train.config.run_config import load_config, recipes, run_config

TEXT = '[data]\ntrain = "a.tsv"\ndev = "b.tsv"\n[model]\npreset = "tiny"\n'


def config(tmp_path, text=TEXT, overrides=()):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load_config(str(path), list(overrides))


def test_paths_start_at_the_config_file(tmp_path):
    assert config(tmp_path).sources()["train"].path == tmp_path / "a.tsv"


def test_a_root_on_the_command_line_starts_where_the_command_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = config(tmp_path, overrides=["data.root=here"])
    assert found.sources()["dev"].path == tmp_path / "here" / "b.tsv"


def test_the_resolved_config_reads_back_the_same(tmp_path):
    found = config(tmp_path, overrides=['task.labels="names.txt"', "data.columns.text=0"])
    (tmp_path / "config.toml").write_text(dump_settings(found), encoding="utf-8")
    assert run_config(tmp_path) == found


def test_a_model_by_name_is_a_folder_beside_the_config_or_a_hub_id(tmp_path):
    (tmp_path / "mine").mkdir()
    text = TEXT.replace('preset = "tiny"', 'name = "mine"')
    assert config(tmp_path, text).model.name == str(tmp_path / "mine")
    assert config(tmp_path, text, ["model.name=bert-base-cased"]).model.name == "bert-base-cased"


@pytest.mark.parametrize("overrides", [["model.name=x"], []])
def test_a_model_is_a_name_or_a_preset(tmp_path, overrides):
    text = TEXT if overrides else TEXT.replace('preset = "tiny"', "")
    with pytest.raises(ConfigError, match=r"one of model\.name .* and model\.preset"):
        config(tmp_path, text, overrides)


def test_a_recipe_for_files_of_the_user_asks_for_their_folder():
    with pytest.raises(ConfigError, match=r"data\.root is not set") as caught:
        load_config("thucnews", [])
    assert "--set data.root=DIR" in caught.value.hint


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_valid(name, tmp_path):
    assert load_config(name, [f"data.root={tmp_path}"]).train.seed == 0


def test_a_length_without_room_for_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"max_length 4 leaves no token of text: 3 are special"):
        config(tmp_path, overrides=["model.max_length=4", "data.columns.text_pair=b"])
    assert config(tmp_path, overrides=["model.max_length=4"]).model.max_length == 4


def test_an_unknown_name_lists_the_recipes():
    with pytest.raises(ConfigError, match="neither a config file nor a recipe") as caught:
        load_config("thucnew", [])
    assert "thucnews" in caught.value.hint


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.head=entity"], "reads two entities, and the data have none"),
        (["model.freeze=true", "train.token_dropout=0.1"], r"with model\.freeze none is read"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, overrides=overrides)
