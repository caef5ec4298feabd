import pytest

from pipework.errors import ConfigError
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Format
from pipework.tasks.kinds import Metric
from pipework.train.config.data import TaskSettings
from pipework.train.config.run_config import load_config

MODEL = '[model]\npreset = "tiny"\n'
DATA = '[data]\ntrain = "a.tsv"\n'


def config(tmp_path, *lines, overrides=()):
    path = tmp_path / "c.toml"
    path.write_text(MODEL + DATA + "\n".join(lines))
    return load_config(str(path), list(overrides))


def test_dev_rows_are_held_out_of_train_by_seed(tmp_path):
    (tmp_path / "a.tsv").write_text(
        "text\tlabel\n" + "".join(f"t{n}\t{n % 2}\n" for n in range(50))
    )
    sources = config(tmp_path, "dev_rows = 20").sources()
    rows = {name: [row.text for row in source.rows()] for name, source in sources.items()}
    assert (len(rows["train"]), len(rows["dev"])) == (30, 20)
    assert not set(rows["train"]) & set(rows["dev"])
    other = config(tmp_path, "dev_rows = 20", "dev_seed = 1").sources()["dev"]
    assert [row.text for row in other.rows()] != rows["dev"]


@pytest.mark.parametrize("dev", ["dev_rows = 20", 'dev = "b.tsv"'])
def test_one_file_is_split_into_train_dev_test_and_calibration(tmp_path, dev):
    lines = [f"t{n}\t{n % 2}\n" for n in range(50)]
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(lines) + lines[0])  # a copy
    (tmp_path / "b.tsv").write_text(
        "text\tlabel\n" + "".join(f"b{n}\t{n % 2}\n" for n in range(20))
    )
    sources = config(tmp_path, dev, "test_rows = 10", "calibration_rows = 5").sources()
    rows = {name: [row.text for row in source.rows()] for name, source in sources.items()}
    assert len(rows["dev"]) in (20, 21)
    assert len(rows["test"]) in (10, 11)
    assert len(rows["calibration"]) in (5, 6)
    texts = [set(rows[name]) for name in ("train", "dev", "test", "calibration")]
    assert sum(map(len, texts)) == len(set().union(*texts))
    assert {f"t{n}" for n in range(50)} <= set().union(*texts)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("dev_rows = 3", "test_rows = 3", 'test = "b.tsv"'), r"expected one of data\.test "),
        (
            ("dev_rows = 3", "calibration_rows = 3", 'calibration = "b.tsv"'),
            r"expected one of data\.calibration ",
        ),
        (
            ('dev = "b.tsv"', 'columns = { text_pair = "b", entities = "e" }'),
            "a pair of texts cannot",
        ),
        (("dev_rows = 0",), "dev_rows"),
    ],
)
def test_contradictory_settings_are_rejected(tmp_path, lines, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, *lines)


def test_pretraining_has_no_rows_for_calibration(tmp_path):
    lines, overrides = ("dev_rows = 3", "calibration_rows = 3"), ["task.kind=pretrain"]
    with pytest.raises(ConfigError, match=r"data\.calibration needs a task with labels or"):
        config(tmp_path, *lines, overrides=overrides)


def test_a_multi_label_task_may_have_a_separator(tmp_path):
    lines = ('dev = "b.tsv"', 'separator = "|"')
    sources = config(tmp_path, *lines, overrides=["task.kind=multi_label"]).sources()
    reading = sources["dev"].reading
    assert (reading.separator, reading.kind) == ("|", "multi_label")


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        ((), ("text",)),
        (('columns = { text_pair = "b" }',), ("text", "text_pair")),
        (("marked = true",), ("text", "entities")),
        (('format = "semeval"',), ("text", "entities")),
        (('format = "jsonl"', 'columns = { entities = "e" }'), ("text", "entities")),
    ],
)
def test_the_fields_of_an_input_depend_on_the_data_settings(tmp_path, lines, fields):
    data = config(tmp_path, 'dev = "b.tsv"', *lines).data
    assert data.fields == fields
    assert data.entities == ("entities" in fields)


def test_the_metric_is_the_configured_or_the_default_metric():
    assert TaskSettings().metric_for(("a", "b")) == Metric.ACCURACY
    assert TaskSettings(metric=Metric.MATTHEWS).metric_for(("a", "b")) == Metric.MATTHEWS
    assert TaskSettings(kind="regression").metric_for(("score",)) == Metric.PEARSON


def test_rows_and_drop_leaked_change_the_parts_of_the_splits(tmp_path):
    def splits(*lines):
        return config(tmp_path, 'test = "c.tsv"', *lines).sources()

    assert {source.part for source in splits('dev = "b.tsv"').values()} == {None}
    few = splits('dev = "b.tsv"', "rows = 5", "drop_leaked = true")
    assert {name: source.part.limit for name, source in few.items()} == dict.fromkeys(few, 5)
    assert few["train"].part.without == ("dev", "test")
    assert few["train"].excluded == (few["dev"], few["test"])
    held = splits("dev_rows = 7", "rows = 5", "drop_leaked = true")
    assert held["dev"].part == Part(rows=7, held_out=True, stratified=True, limit=5)
    assert held["train"].part == Part(rows=7, stratified=True, limit=5, without=("dev", "test"))


def test_the_positive_label_is_one_of_two_by_name_or_number():
    assert TaskSettings().positive_for(("no", "yes")) is None
    assert TaskSettings(positive="no").positive_for(("no", "yes")) == "no"
    assert TaskSettings(positive=0).positive_for(("no", "yes")) == "no"
    assert TaskSettings(positive=1).positive_for(("1", "0")) == "1"
    for settings, labels in (
        ({"positive": "maybe"}, ("no", "yes")),
        ({"positive": "a"}, ("a", "b", "c")),
        ({"positive": "a", "kind": "multi_label"}, ("a", "b")),
    ):
        with pytest.raises(
            ConfigError, match=r"task\.positive to be one of two labels, found"
        ) as e:
            TaskSettings(**settings).positive_for(labels)
        assert ", ".join(labels) in e.value.hint


REAL = {
    "thucnews": ("thucnews_headlines", (45_000, 10_000, 10_000)),
    "mrpc": ("mrpc", (3668, 408, 1725)),
    "sst2": ("sst2", (67_349, 872, 1821)),
    "stsb": ("stsb", (5749, 1500)),
    "semeval2010-task8": ("semeval2010_task8", (7200, 800, 2717)),
}


@pytest.mark.parametrize("recipe", REAL)
def test_a_recipe_reads_the_real_files(shared_data, recipe):
    folder, counts = REAL[recipe]
    config = load_config(recipe, [f"data.root={shared_data / folder}"])
    rows = {name: list(source.rows()) for name, source in config.sources().items()}
    sizes = tuple(map(len, rows.values()))
    assert sum(sizes) == sum(counts)
    assert all(abs(size - count) < 10 for size, count in zip(sizes, counts, strict=True))
    assert all((row.entities is not None) == config.data.entities for row in rows["dev"])
    assert all(
        (row.text_pair is not None) == (len(config.data.fields) == 2 and not config.data.entities)
        for row in rows["dev"]
    )


def test_the_xnli_recipe_reads_dev_and_test(shared_data):
    sources = load_config("xnli", [f"data.root={shared_data / 'xnli_zh'}"]).sources()
    assert [sum(1 for _ in sources[name].rows()) for name in ("dev", "test")] == [2490, 5010]


GLUE = {
    "cola": ("gj04\t1\t\tIt rains.\ngj04\t0\t*\tRains it it.\n", ["1", "0"]),
    "mnli": (
        "index\tsentence1\tsentence2\tgold_label\n0\tIt rains.\tIt is dry.\tneutral\n",
        ["neutral"],
    ),
}


@pytest.mark.parametrize("recipe", GLUE)
def test_a_recipe_reads_the_file_format_of_glue(tmp_path, recipe):
    text, labels = GLUE[recipe]
    config = load_config(recipe, [f"data.root={tmp_path}"])
    for source in config.sources().values():
        assert source.read_options().format == Format.TSV
        source.path.write_text(text)
        rows = list(source.rows())
        assert [row.label for row in rows] == labels
        assert rows[0].text == "It rains."
    config.task.metric_for(config.task.labels)
