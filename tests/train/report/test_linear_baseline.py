import random
import sys

import numpy as np
import pytest

from pipework.data.examples import Example, Source
from pipework.data.readers import Columns
from pipework.errors import MissingDependencyError, in_words
from pipework.progress import Silent
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.train.report import linear_baseline as baseline
from pipework.train.report.linear_baseline import linear_baseline, sample

TOPICS = Task(kind=TaskKind.SINGLE_LABEL, labels=("food", "sport", "never"), metric=Metric.ACCURACY)
WORDS = {"food": ("soup", "bread", "salt"), "sport": ("goal", "race", "team")}
PAIRS = Columns(text_pair="text_pair")


def table(path, header, rows):
    path.write_text("\n".join("\t".join(row) for row in (header, *rows)) + "\n")
    return path


def topic_rows(count, chance):
    for _ in range(count):
        label = chance.choice(("food", "sport"))
        words = chance.choices(WORDS[label], k=2) + chance.choices(("the", "a", "we"), k=3)
        chance.shuffle(words)
        yield " ".join(words), label


def topics(tmp_path, rows=60):
    chance, header = random.Random(0), ("text", "label")
    files = {
        name: table(tmp_path / f"{name}.tsv", header, topic_rows(rows, chance))
        for name in ("train", "dev")
    }
    return (Source(path=path, columns=Columns()) for path in files.values())


def test_it_learns_what_words_tell(tmp_path):
    found = linear_baseline(*topics(tmp_path), TOPICS, Silent())
    assert found.evaluation.score == 1
    assert found.logits_NC.shape == (60, 3)  # also for the class that no row has
    assert found.logits_NC.dtype == np.float32
    assert (found.rows, found.all_rows) == (60, 60)
    assert found.seconds > 0


def test_it_is_the_same_every_time(tmp_path):
    first, second = (linear_baseline(*topics(tmp_path), TOPICS, Silent()) for _ in range(2))
    assert np.array_equal(first.logits_NC, second.logits_NC)


def test_of_many_rows_it_sees_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "ROWS", 40)
    found = linear_baseline(*topics(tmp_path), TOPICS, Silent())
    assert (found.rows, found.all_rows) == (40, 60)


def test_with_many_labels_it_sees_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "FITS", 90)
    monkeypatch.setattr(baseline, "FEWEST_ROWS", 10)
    assert linear_baseline(*topics(tmp_path), TOPICS, Silent()).rows == 30


def test_a_sample_gives_every_row_the_same_chance():
    rows = [Example(text=f"{place}") for place in range(2000)]
    kept, count = sample(iter(rows), 500)
    places = sorted(int(row.text) for row in kept)
    assert (count, len(set(places))) == (2000, 500)
    quarters, _ = np.histogram(places, bins=4, range=(0, 2000))
    assert quarters.min() > 90
    assert sample(iter(rows), 500)[0] == kept
    assert sample(iter(rows[:7]), 500) == (rows[:7], 7)


def test_chinese_needs_no_spaces(tmp_path):
    rows = [("今天吃面包", "food"), ("晚上喝热汤", "food"), ("球队赢了比赛", "sport")] * 3
    train = table(tmp_path / "train.tsv", ("text", "label"), rows)
    asked = [("我吃汤面", "food"), ("比赛有两队", "sport")]
    dev = table(tmp_path / "dev.tsv", ("text", "label"), asked)
    sources = (Source(path=path, columns=Columns()) for path in (train, dev))
    assert linear_baseline(*sources, TOPICS, Silent()).evaluation.score == 1


def pairs(tmp_path, rows, **kwargs):
    header = ("text", "text_pair", "label")
    paths = (table(tmp_path / f"{n}.tsv", header, part) for n, part in rows.items())
    return (Source(path=path, columns=PAIRS, **kwargs) for path in paths)


def test_the_order_of_a_pair_counts(tmp_path):
    task = Task(kind=TaskKind.SINGLE_LABEL, labels=("up", "down"), metric=Metric.ACCURACY)
    rows = [("small", "large", "up"), ("large", "small", "down")] * 5
    found = linear_baseline(*pairs(tmp_path, {"train": rows, "dev": rows}), task, Silent())
    assert found.evaluation.score == 1
    assert "of both texts" in found.name


def test_a_regression_learns_how_like_two_texts_are(tmp_path):
    chance, words = random.Random(1), [f"w{number}" for number in range(300)]
    rows = []
    for _ in range(200):
        common, own, other = (chance.sample(words, 10) for _ in range(3))
        like = chance.randrange(11)
        texts = (" ".join(common[:like] + mine[like:]) for mine in (own, other))
        rows.append((*texts, f"{like / 2}"))
    task = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
    files = pairs(tmp_path, {"train": rows[:150], "dev": rows[150:]}, kind=TaskKind.REGRESSION)
    found = linear_baseline(*files, task, Silent())
    assert found.logits_NC.shape == (50, 1)
    assert found.evaluation.score > 0.9
    assert found.name.startswith("ridge regression")


def test_several_labels_get_thresholds_of_their_own(tmp_path):
    rows = [("soup", "food"), ("goal", "sport"), ("soup goal", "food,sport"), ("rain", "")] * 4
    path = tmp_path / "a.jsonl"
    lines = (f'{{"text": "{t}", "label": {n.split(",") if n else []!s}}}' for t, n in rows)
    path.write_text("\n".join(lines).replace("'", '"') + "\n")
    source = Source(path=path, columns=Columns(), kind=TaskKind.MULTI_LABEL)
    task = Task(
        kind=TaskKind.MULTI_LABEL, labels=("food", "sport", "never"), metric=Metric.MICRO_F1
    )
    found = linear_baseline(source, source, task, Silent())
    assert found.evaluation.score == 1
    assert len(found.task.thresholds) == 3
    assert task.thresholds == ()


def test_which_entity_is_marked_counts(tmp_path):
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
    source = Source(path=path, columns=Columns(entities="entities"))
    task = Task(kind=TaskKind.SINGLE_LABEL, labels=("first", "last"), metric=Metric.ACCURACY)
    assert linear_baseline(source, source, task, Silent()).evaluation.score == 1


def test_without_scikit_learn_it_answers_with_the_install_command(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        linear_baseline(*topics(tmp_path), TOPICS, Silent())
    told = in_words(caught.value)
    assert isinstance(told, MissingDependencyError)
    assert told.hint == "pip install 'pipework[train]'"


def test_on_headlines_it_is_as_good_as_is_known(shared_data):
    folder = shared_data / "thucnews_headlines"
    labels = tuple((folder / "class.txt").read_text(encoding="utf-8").split())
    task = TOPICS.model_copy(update={"labels": labels})
    train, test = (
        Source(path=folder / name, columns=Columns(text=0, label=1))
        for name in ("train_45000.txt", "test.txt")
    )
    found = linear_baseline(train, test, task, Silent())
    assert 0.895 < found.evaluation.score < 0.91
