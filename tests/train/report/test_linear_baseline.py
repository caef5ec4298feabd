import random
import sys
from dataclasses import replace

import numpy as np
import pytest

from pipework.data.examples import Example, Source
from pipework.errors import MissingDependencyError, as_pipe_error
from pipework.progress import NullProgress
from pipework.run_folder.read_options import Reading
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.report import linear_baseline as baseline
from pipework.train.report.linear_baseline import linear_baseline, sample

TOPICS = SingleLabelTask(labels=("food", "sport", "never"), metric=Metric.ACCURACY)
WORDS = {"food": ("soup", "bread", "salt"), "sport": ("goal", "race", "team")}
PAIRS = Reading(text_pair="text_pair")


def table(path, header, rows):
    path.write_text("\n".join("\t".join(row) for row in (header, *rows)) + "\n")
    return path


def topic_rows(count, generator):
    for _ in range(count):
        label = generator.choice(("food", "sport"))
        words = generator.choices(WORDS[label], k=2) + generator.choices(("the", "a", "we"), k=3)
        generator.shuffle(words)
        yield " ".join(words), label


def topics(tmp_path, rows=60):
    generator, header = random.Random(0), ("text", "label")
    files = {
        name: table(tmp_path / f"{name}.tsv", header, topic_rows(rows, generator))
        for name in ("train", "dev")
    }
    return (Source(path=path) for path in files.values())


def splits(train, dev):
    return {"train": train, "dev": dev}


def test_the_baseline_learns_from_words(tmp_path):
    result = linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress())
    assert result.evaluation.score == 1
    assert result.outputs.values.shape == (60, 3)  # includes the class without rows
    assert result.outputs.values.dtype == np.float32
    assert (result.rows, result.all_rows) == (60, 60)
    assert result.seconds > 0


def test_the_baseline_is_deterministic(tmp_path):
    first, second = (
        linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress()) for _ in range(2)
    )
    assert np.array_equal(first.outputs.values, second.outputs.values)


def test_large_files_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "ROWS", 40)
    result = linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress())
    assert (result.rows, result.all_rows) == (40, 60)


def test_many_labels_reduce_the_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "FITS", 90)
    monkeypatch.setattr(baseline, "FEWEST_ROWS", 10)
    assert linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress()).rows == 30


def test_the_baseline_of_very_many_labels_is_the_nearest_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "MANY_LABELS", 2)
    result = linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress())
    assert result.name == "nearest mean on TF-IDF of words and word bigrams"
    assert result.evaluation.score == 1
    cosines = result.outputs.values
    assert cosines.dtype == np.float32
    assert cosines.min() >= 0
    assert 0.5 < cosines.max() <= 1 + 1e-6


def test_the_nearest_mean_uses_more_rows_than_the_support_vector_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "FITS", 90)
    monkeypatch.setattr(baseline, "FEWEST_ROWS", 10)
    monkeypatch.setattr(baseline, "MANY_LABELS", 2)
    assert linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress()).rows == 60


def test_blocks_do_not_change_the_nearest_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "MANY_LABELS", 2)
    files = splits(*topics(tmp_path))
    whole = linear_baseline(files, TOPICS, NullProgress()).outputs.values
    monkeypatch.setattr(baseline, "MAX_COSINES", 7 * 3)
    blocks = linear_baseline(files, TOPICS, NullProgress()).outputs.values
    np.testing.assert_allclose(blocks, whole, rtol=1e-6)


def test_long_texts_are_sampled(tmp_path, monkeypatch):
    train, dev = topics(tmp_path)
    characters = sum(len(row.text) for row in train.rows())
    monkeypatch.setattr(baseline, "CHARACTERS", characters // 3)
    result = linear_baseline(splits(train, dev), TOPICS, NullProgress())
    assert (result.rows, result.all_rows) in ((19, 60), (20, 60))
    assert result.trained_on == f"{result.rows} of the 60 rows"


def test_dev_rows_are_read_only_for_thresholds(tmp_path):
    train, test = topics(tmp_path)
    missing = replace(train, path=tmp_path / "missing.tsv")
    sources = {"train": train, "dev": missing, "test": test}
    assert linear_baseline(sources, TOPICS, NullProgress()).split == "test"


def test_the_sample_is_uniform():
    rows = [Example(text=f"{place}") for place in range(2000)]
    sampled, count = sample(iter(rows), 500)
    places = sorted(int(row.text) for row in sampled)
    assert (count, len(set(places))) == (2000, 500)
    quarters, _ = np.histogram(places, bins=4, range=(0, 2000))
    assert quarters.min() > 90
    assert sample(iter(rows), 500)[0] == sampled
    assert sample(iter(rows[:7]), 500) == (rows[:7], 7)


def test_chinese_needs_no_spaces(tmp_path):
    rows = [("今天吃面包", "food"), ("晚上喝热汤", "food"), ("球队赢了比赛", "sport")] * 3
    train = table(tmp_path / "train.tsv", ("text", "label"), rows)
    dev_rows = [("我吃汤面", "food"), ("比赛有两队", "sport")]
    dev = table(tmp_path / "dev.tsv", ("text", "label"), dev_rows)
    sources = (Source(path=path) for path in (train, dev))
    assert linear_baseline(splits(*sources), TOPICS, NullProgress()).evaluation.score == 1


def pairs(tmp_path, rows, **kwargs):
    header = ("text", "text_pair", "label")
    paths = (table(tmp_path / f"{n}.tsv", header, part) for n, part in rows.items())
    return (Source(path=path, reading=PAIRS).reread(**kwargs) for path in paths)


def test_the_order_of_a_text_pair_matters(tmp_path):
    task = SingleLabelTask(labels=("up", "down"), metric=Metric.ACCURACY)
    rows = [("small", "large", "up"), ("large", "small", "down")] * 5
    result = linear_baseline(
        splits(*pairs(tmp_path, {"train": rows, "dev": rows})), task, NullProgress()
    )
    assert result.evaluation.score == 1
    assert "of both texts" in result.name


def test_a_regression_learns_the_similarity_of_two_texts(tmp_path):
    generator, words = random.Random(1), [f"w{number}" for number in range(300)]
    rows = []
    for _ in range(200):
        common, own, other = (generator.sample(words, 10) for _ in range(3))
        similarity = generator.randrange(11)
        texts = (" ".join(common[:similarity] + mine[similarity:]) for mine in (own, other))
        rows.append((*texts, f"{similarity / 2}"))
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    files = pairs(tmp_path, {"train": rows[:150], "dev": rows[150:]}, kind="regression")
    result = linear_baseline(splits(*files), task, NullProgress())
    assert result.outputs.values.shape == (50, 1)
    assert result.evaluation.score > 0.9
    assert result.name.startswith("ridge regression")


def test_a_multi_label_baseline_has_its_own_thresholds(tmp_path):
    rows = [("soup", "food"), ("goal", "sport"), ("soup goal", "food,sport"), ("rain", "")] * 4
    path = tmp_path / "a.jsonl"
    lines = (f'{{"text": "{t}", "label": {n.split(",") if n else []!s}}}' for t, n in rows)
    path.write_text("\n".join(lines).replace("'", '"') + "\n")
    source = Source(path=path, reading=Reading(kind="multi_label"))
    task = MultiLabelTask(labels=("food", "sport", "never"), metric=Metric.MICRO_F1)
    result = linear_baseline(splits(source, source), task, NullProgress())
    assert result.evaluation.score == 1
    assert len(result.task.thresholds) == 3
    assert task.thresholds == ()


def test_the_position_of_entities_matters(tmp_path):
    lines = []
    for left, right in (("cat", "dog"), ("tea", "cup"), ("sun", "sea"), ("ant", "bee")):
        text = f"{left} and {right} and rain"
        spans = {"first": [[0, 3], [8, 11]], "last": [[8, 11], [16, 20]]}
        lines += [
            f'{{"text": "{text}", "entities": {span}, "label": "{label}"}}'
            for label, span in spans.items()
        ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    source = Source(path=path, reading=Reading(entities="entities"))
    task = SingleLabelTask(labels=("first", "last"), metric=Metric.ACCURACY)
    assert linear_baseline(splits(source, source), task, NullProgress()).evaluation.score == 1


def test_missing_scikit_learn_is_reported_with_the_install_command(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        linear_baseline(splits(*topics(tmp_path)), TOPICS, NullProgress())
    error = as_pipe_error(caught.value)
    assert isinstance(error, MissingDependencyError)
    assert error.hint == "pip install 'pipework[train]'"


@pytest.mark.slow
def test_the_accuracy_on_headlines_is_as_expected(shared_data):
    folder = shared_data / "thucnews_headlines"
    labels = tuple((folder / "class.txt").read_text(encoding="utf-8").split())
    task = TOPICS.model_copy(update={"labels": labels})
    train, test = (
        Source(path=folder / name, reading=Reading(text=0, label=1))
        for name in ("train_45000.txt", "test.txt")
    )
    result = linear_baseline(splits(train, test), task, NullProgress())
    assert 0.895 < result.evaluation.score < 0.91


def test_the_baseline_is_scored_on_test_if_there_is_one(tmp_path):
    train, dev = topics(tmp_path)
    wrong = table(tmp_path / "test.tsv", ("text", "label"), [("soup bread", "sport")] * 4)
    sources = splits(train, dev) | {"test": Source(path=wrong)}
    result = linear_baseline(sources, TOPICS, NullProgress())
    assert (result.split, result.evaluation.score, result.outputs.values.shape) == (
        "test",
        0,
        (4, 3),
    )
    assert linear_baseline(splits(train, dev), TOPICS, NullProgress()).split == "dev"
