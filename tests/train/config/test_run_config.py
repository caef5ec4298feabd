import json
import re

import pytest

from pipework.errors import ConfigError
from pipework.settings import dump_settings, setting_keys
from pipework.train.config.run_config import (
    EQUIVALENTS,
    Config,
    is_config,
    load_config,
    recipes,
    run_config,
)

TEXT = '[data]\ntrain = "a.tsv"\ndev = "b.tsv"\n[model]\npreset = "tiny"\n'


def config(tmp_path, text=TEXT, overrides=()):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load_config(str(path), list(overrides))


def test_paths_are_relative_to_the_config_file(tmp_path):
    assert config(tmp_path).sources()["train"].path == tmp_path / "a.tsv"


def test_a_root_override_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overridden = config(tmp_path, overrides=["data.root=here"])
    assert overridden.sources()["dev"].path == tmp_path / "here" / "b.tsv"


def test_the_resolved_config_reads_back_equal(tmp_path):
    resolved = config(tmp_path, overrides=['task.labels="names.txt"', "train.warmup_steps=5"])
    (tmp_path / "config.toml").write_text(dump_settings(resolved), encoding="utf-8")
    assert run_config(tmp_path) == resolved


def test_a_model_name_is_a_folder_next_to_the_config_or_a_hub_id(tmp_path):
    (tmp_path / "mine").mkdir()
    text = TEXT.replace('preset = "tiny"', 'name = "mine"')
    assert config(tmp_path, text).model.name == str(tmp_path / "mine")
    assert config(tmp_path, text, ["model.name=bert-base-cased"]).model.name == "bert-base-cased"


def test_a_vocabulary_is_next_to_the_data_or_with_an_override_in_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").touch()
    inside = tmp_path / "data" / "vocab.txt"
    found = [
        config(tmp_path, text, ["data.root=data", *override]).model.vocab
        for text, override in (
            (TEXT, ["model.vocab=vocab.txt"]),
            (TEXT, ["model.vocab=other.txt"]),
            (TEXT.replace('preset = "tiny"', 'preset = "tiny"\nvocab = "vocab.txt"'), []),
        )
    ]
    assert found == [tmp_path / "vocab.txt", inside.with_name("other.txt"), inside]


def test_a_recipe_for_files_of_the_user_needs_data_root():
    with pytest.raises(
        ConfigError, match=r"^this recipe reads your own data files: data\.root is not set$"
    ) as caught:
        load_config("thucnews", [])
    assert "--set data.root=DIR" in caught.value.hint


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_valid(name, tmp_path):
    assert load_config(name, [f"data.root={tmp_path}"]).train.seed == 0


def test_a_max_length_without_room_for_text_is_rejected(tmp_path):
    message = r"max_length 4 leaves no token for the text: 3 are special tokens"
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, overrides=["model.max_length=4", "data.columns.text_pair=b"])
    assert config(tmp_path, overrides=["model.max_length=4"]).model.max_length == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.teacher=other", "needs a task with one prediction for each text"),
        ("data.columns.text_pair=b", "spans are those of single texts"),
        ("model.head=cnn", "has no logits for each token"),
    ],
)
def test_spans_need_single_texts_and_a_row_of_logits_for_each_token(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, overrides=["task.kind=tokens", override])
    assert config(tmp_path, overrides=["task.kind=tokens"]).task.type.rows_per_token


FOREIGN = {
    "num_train_epochs": 3,
    "per_gpu_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "learning_rate": 2e-5,
    "adam_epsilon": 1e-8,
    "warmup_steps": 100,
    "save_steps": 50,
    "logging_steps": 50,
    "fp16": True,
    "data_dir": "data",
    "model_type": "bert",
    "model_name_or_path": "bert-base-cased",
    "max_seq_length": 128,
    "output_dir": "out",
    "my_option": 1,
}
ANSWER = (
    "num_train_epochs -> train.epochs, "
    "per_gpu_train_batch_size -> train.batch_size, over all processes, "
    "gradient_accumulation_steps -> train.accumulate, learning_rate -> train.learning_rate, "
    "adam_epsilon -> train.eps, warmup_steps -> train.warmup_steps, "
    "save_steps -> train.save_every, or train.keep_every to keep the weights, "
    "logging_steps -> not needed, "
    'fp16 -> train.precision = "fp16", data_dir -> data.root, '
    "model_type -> model.name, whose config.json has it, or model.family with model.preset, "
    "model_name_or_path -> model.name, max_seq_length -> model.max_length, output_dir -> --out, "
    "my_option -> (unknown)"
)


@pytest.mark.parametrize("section", [None, "train"])
def test_the_keys_of_other_programs_are_answered_with_the_equivalent_keys(tmp_path, section):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(FOREIGN if section is None else {section: FOREIGN}))
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), [])
    expected = ANSWER
    if section == "train":  # these are keys of [train] here, too
        for name in ("learning_rate", "warmup_steps"):
            expected = expected.replace(f"{name} -> train.{name}, ", "")
    assert str(caught.value) == f"{path} has keys of other programs, here: {expected}"
    assert caught.value.hint == "sections: task, data, model, train, pretrain, tune"


def test_the_equivalents_of_foreign_keys_exist():
    known = set(setting_keys(Config))
    options = {"--out", "--nproc", "pipe train", "pipe eval", "pipe predict", "not needed"}
    for name, text in EQUIVALENTS.items():
        named = set(re.findall(r"\b(?:task|data|model|train)\.[a-z_.]*[a-z]", text))
        assert named <= known, name
        assert named or text in options, name


def test_a_model_from_scratch_has_another_default_learning_rate():
    rates = [
        load_config("sst2", ["data.root=x", *overrides]).train.learning_rate
        for overrides in (
            ["model.name=", "model.preset=tiny", "train.learning_rate="],
            ["model.name=", "model.preset=tiny", "train.learning_rate=1e-3"],
            ["train.learning_rate="],
        )
    ]
    assert rates == [5e-4, 1e-3, 5e-5]


def test_a_json_array_is_not_a_config(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"text": "x", "label": "a"}]')
    assert (is_config(str(path)), is_config("mine.json"), is_config("sst2")) == (False, True, True)


def test_an_unknown_name_lists_the_recipes():
    with pytest.raises(ConfigError, match="thucnew is neither a config file nor a ") as caught:
        load_config("thucnew", [])
    assert "thucnews" in caught.value.hint


def test_a_step_size_needs_the_schedule_step(tmp_path):
    message = r"step_size needs train\.schedule step, found linear"
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, overrides=["train.step_size=9"])


def test_a_missing_config_file_is_reported_with_a_similar_one(tmp_path):
    (tmp_path / "reviews.toml").write_text("")
    with pytest.raises(ConfigError, match=r"config file .*reviws\.toml does not exist") as caught:
        load_config(str(tmp_path / "reviws.toml"), [])
    assert caught.value.hint == f"similar config files: {tmp_path / 'reviews.toml'}"


def test_a_missing_section_is_reported_with_its_keys(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[data]\ntrain = "a.tsv"\ndev = "b.tsv"\n')
    with pytest.raises(ConfigError, match=r"c\.toml: model: missing section") as caught:
        load_config(str(path), [])
    assert caught.value.hint.startswith("keys of [model]: ")
    assert ", preset, " in caught.value.hint
