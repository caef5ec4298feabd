import json

import pytest

from pipework.errors import ConfigError
from pipework.train.config.run_config import load_config
from pipework.train.tune.search_space import ChoiceRange, NumberRange, SearchSpace

RATE = "train.learning_rate = { low = 1e-5, high = 1e-3, log = true }\n"
BASE = '[data]\ntrain = "train.tsv"\ndev = "dev.tsv"\n[model]\npreset = "tiny"\n'


@pytest.fixture
def space(tmp_path):
    """A function that loads a config with these lines in its section [tune]."""

    def load(lines, *overrides, base=BASE, name="c.toml"):
        (tmp_path / name).write_text(f"{base}[tune]\n{lines}")
        return SearchSpace.load(str(tmp_path / name), overrides)

    return load


def test_ranges_name_settings_by_their_dotted_keys(space):
    lines = 'train.epochs = { low = 2, high = 6 }\nmodel.head = ["linear", "cnn"]\ntrials = 7\n'
    loaded = space(RATE + lines)
    assert loaded.config.tune.trials == 7
    assert loaded.ranges == (
        NumberRange(key="train.learning_rate", low=1e-5, high=1e-3, log=True, integer=False),
        NumberRange(key="train.epochs", low=2, high=6, log=False, integer=True),
        ChoiceRange(key="model.head", choices=('"linear"', '"cnn"')),
    )


def test_quoted_keys_tables_json_and_set_have_the_same_ranges(space, tmp_path):
    quoted = RATE.replace("train.learning_rate", '"train.learning_rate"')
    bounds = {"low": 1e-5, "high": 1e-3, "log": True}
    sections = {
        "data": {"train": "t", "dev": "d"},
        "model": {"preset": "tiny"},
        "tune": {"train": {"learning_rate": bounds}},
    }
    (tmp_path / "c.json").write_text(json.dumps(sections))
    (_, equals, value) = RATE.partition("=")
    spaces = (
        space(RATE),
        space(quoted),
        space("", f"tune.train.learning_rate{equals}{value}"),
        SearchSpace.load(str(tmp_path / "c.json"), []),
    )
    assert len({loaded.ranges for loaded in spaces}) == 1


def test_a_number_is_an_integer_if_the_setting_is(space):
    loaded = space(
        "train.warmup_steps = { low = 0, high = 50 }\ntrain.clip = { low = 1, high = 2 }\n"
    )
    assert [setting.integer for setting in loaded.ranges] == [True, False]


def test_the_values_of_the_config_are_known(space):
    lines = 'model.head = ["cnn", "lstm"]\ntrain.early_stop = [2, 3]\n'
    loaded = space(RATE + lines, "model.head=lstm")
    assert loaded.current() == {
        "train.learning_rate": "0.0005",
        "model.head": '"lstm"',
        "train.early_stop": "",
    }
    assert loaded.parameters() == {"train.learning_rate": 5e-4, "model.head": '"lstm"'}


def test_folders_are_absolute(space, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    base = BASE.replace('preset = "tiny"', 'name = "one"')
    (setting,) = space('model.name = ["one", "two"]\n', base=base).ranges
    assert setting.choices == (f'"{tmp_path}/one"', f'"{tmp_path}/two"')


def test_a_run_ignores_the_ranges(space, tmp_path):
    loaded = space(RATE)
    assert load_config(str(tmp_path / "c.toml"), []) == loaded.config
    assert "tune" not in loaded.config.model_dump()


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        ("trials = 3\n", "has no ranges of settings", "train.learning_rate = { low"),
        (
            "train.learning_rat = [1, 2]\n",
            "tune.train.learning_rat: unknown key",
            "did you mean train.learning_rate",
        ),
        (
            "train.epochs = 3\n",
            "tune.train.epochs: expected { low, high } or a list of two or more distinct values",
            "",
        ),
        ("train.epochs = [3, 3]\n", "two or more distinct values, found [3, 3]", ""),
        ("train.epochs = []\n", "two or more distinct values, found []", ""),
        (
            "train.epochs = { low = 1.5, high = 3 }\n",
            "{ low, high } with integers, low < high, found {'low': 1.5, 'high': 3}",
            "",
        ),
        ("train.clip = { low = 2, high = 1 }\n", "with numbers, low < high, found", ""),
        ("train.clip = { low = 2 }\n", "with numbers, low < high, found {'low': 2}", ""),
        ("train.clip = { low = 1, high = 2, step = 1 }\n", "with numbers, low < high, found", ""),
        ('train.clip = { low = 1, high = 2, log = "yes" }\n', "with numbers, low < high", ""),
        (
            "train.weight_decay = { low = 0, high = 0.1, log = true }\n",
            "tune.train.weight_decay: a logarithmic range needs low > 0, found 0",
            "raise low",
        ),
        (
            "model.head = { low = 1, high = 2 }\n",
            "tune.model.head: expected a list of values, found {'low': 1, 'high': 2}",
            "model.head is not a number",
        ),
        (
            'model.head = ["linear", "cnm"]\n',
            """tune.model.head: the value "cnm" cannot be used: --set model.head: Input""",
            "",
        ),
        (
            "train.epochs = { low = 0, high = 3 }\n",
            "tune.train.epochs: the value 0 cannot be used: --set train.epochs: Input should be",
            "",
        ),
        ("train.seed = [1, 2]\n", "tune.train.seed: a seed is no setting to search", "tune.seeds"),
        (
            "data.rows = [10, 20]\n",
            "tune.data.rows: the value 10 changes the task, or the rows of dev or test",
            "same rows",
        ),
        (
            'task.metric = ["accuracy", "macro_f1"]\n',
            'tune.task.metric: the value "accuracy" changes the task',
            "",
        ),
        (
            "data.drop_leaked = [true, false]\n",
            "tune.data.drop_leaked needs task.labels",
            "set task.labels",
        ),
        ("trials = 0\n", "tune.trials: Input should be greater than or equal to 1, found 0", ""),
    ],
)
def test_a_wrong_range_is_reported_in_one_line(space, lines, message, hint):
    with pytest.raises(ConfigError) as caught:
        space(lines)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint in caught.value.hint


def test_a_search_with_spans_has_settings_that_keep_the_tokens(space):
    base = BASE + '[task]\nkind = "tokens"\n'
    assert space("train.epochs = [1, 2]\n", base=base)
    with pytest.raises(ConfigError, match="may change the tokens"):
        space("model.max_length = [8, 16]\n", base=base)


def test_a_search_needs_labelled_rows_and_seeds_of_its_own(space):
    base = BASE.replace("[model]", 'format = "text"\n[model]') + '[task]\nkind = "pretrain"\n'
    with pytest.raises(ConfigError, match=r"found task\.kind = pretrain"):
        space(RATE, base=base)
    with pytest.raises(ConfigError, match=r"tune\.seeds is the number of seeds"):
        space(RATE, "train.seeds=[1, 2]")
