"""Linear models: fitted, scored, exported, and kept as the baseline of other runs."""

import random
import sys
from itertools import pairwise

import numpy as np
import pytest
from sklearn.feature_extraction import DictVectorizer
from sklearn.svm import LinearSVC

from pipework.data.examples import Example
from pipework.errors import CheckFailedError, ConfigError, MissingDependencyError, as_pipe_error
from pipework.export.config import ExportSettings
from pipework.export.publish.folder import publish_folder
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import open_encoder
from pipework.train.config.run_config import load_config, run_config
from pipework.train.report.baseline import FOLDER
from pipework.train.run import train
from tests.train.learning import logits, score


def test_a_linear_model_learns_words_and_is_deterministic(fitted, topics):
    runs = [fitted(topics) for _ in range(2)]
    assert (score(runs[0]), score(runs[0], "test")) == (1, 1)
    assert read_manifest(runs[0]).data.baseline is None
    first, second = ((run / "checkpoint" / "model.safetensors").read_bytes() for run in runs)
    assert first == second


def test_windows_of_train_texts_teach_words_beyond_the_maximum_length(fitted, topics):
    topics["train"] = [("the a we " * 4 + text, label) for text, label in topics["train"]]
    settings = ["model.max_length=10", "train.report=false"]
    with pytest.raises(CheckFailedError, match="learned nothing"):
        fitted(topics, *settings)
    assert score(fitted(topics, *settings, "train.window_stride=3")) == 1


def test_the_logits_are_those_of_scikit_learn(fitted, topics):
    run = fitted(topics, "train.calibrate=false")
    encoder = open_encoder(run, read_manifest(run))

    def counts(rows):
        for text, _ in rows:
            ids = encoder.encode([Example(text=text)])[0].ids.tolist()
            names = [*ids, ids[0], *pairwise(ids)]
            yield {str(name): names.count(name) for name in names}

    train_rows, test_rows = list(counts(topics["train"])), list(counts(topics["test"]))
    vectorizer = DictVectorizer().fit([*train_rows, *test_rows])
    counts_NF = vectorizer.transform(train_rows).toarray()
    idf_F = np.log(61 / (1 + (counts_NF > 0).sum(axis=0))) + 1

    def weighted(rows):
        x_NF = vectorizer.transform(rows).toarray()
        return x_NF * idf_F / np.sqrt(x_NF @ idf_F**2)[:, None]

    labels = [label == "sport" for _, label in topics["train"]]
    expected = LinearSVC(random_state=0).fit(weighted(train_rows), labels)
    found_NC = logits(run, [Example(text=text) for text, _ in topics["test"]])
    wanted_N = expected.decision_function(weighted(test_rows))
    np.testing.assert_allclose(found_NC[:, 1], wanted_N, atol=2e-3)
    np.testing.assert_allclose(found_NC[:, 0], -wanted_N, atol=2e-3)


def test_chinese_needs_no_spaces(fitted):
    rows = [("今天吃面包", "food"), ("晚上喝热汤", "food"), ("球队赢了比赛", "sport")] * 3
    dev = [("我吃汤面", "food"), ("球队比赛", "sport")]
    assert score(fitted({"train": rows, "dev": dev})) == 1


def test_the_order_of_a_text_pair_matters(fitted):
    rows = [("small", "large", "up"), ("large", "small", "down")] * 5
    run = fitted({"train": rows, "dev": rows}, header=("text", "text_pair", "label"))
    assert score(run) == 1


def test_a_regression_learns_the_similarity_of_two_texts(fitted):
    generator, words = random.Random(1), [f"w{number}" for number in range(300)]
    rows = []
    for _ in range(200):
        common, own, other = (generator.sample(words, 10) for _ in range(3))
        similarity = generator.randrange(11)
        texts = (" ".join(common[:similarity] + mine[similarity:]) for mine in (own, other))
        rows.append((*texts, f"{similarity / 2}"))
    run = fitted(
        {"train": rows[:150], "dev": rows[150:]},
        *("task.kind=regression", "model.vocab_size=2000", "model.max_length=128"),
        header=("text", "text_pair", "label"),
    )
    assert score(run) > 0.9


def test_several_labels_have_thresholds(fitted):
    rows = [("soup", "food"), ("goal", "sport"), ("soup goal", "food,sport"), ("rain", "")] * 4
    run = fitted({"train": rows, "dev": rows}, "task.kind=multi_label", "data.separator=,")
    assert score(run) == 1
    assert len(read_manifest(run).task.thresholds) == 2


def test_the_position_of_entities_matters(fitted):
    rows = []
    for left, right in (("cat", "dog"), ("tea", "cup"), ("sun", "sea"), ("ant", "bee")):
        rows += [
            (f"<e1>{left}</e1> and <e2>{right}</e2> and rain", "first"),
            (f"{left} and <e1>{right}</e1> and <e2>rain</e2>", "last"),
        ]
    assert score(fitted({"train": rows, "dev": rows}, "data.marked=true")) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.head=cnn"], "model.preset linear has no encoder"),
        (["model.freeze=true"], "model.preset linear has no encoder"),
        (["train.teacher=runs/a"], "learns only from labels"),
        (["train.class_weights=[1,2]"], "equal or balanced, found numbers"),
        (["task.kind=pretrain", "data.columns.label="], "has no steps of training"),
    ],
)
def test_settings_of_other_models_are_refused(fitted, topics, settings, message):
    with pytest.raises(ConfigError, match=message):
        fitted(topics, *settings)


def test_missing_scikit_learn_is_reported_with_the_install_command(fitted, topics, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        fitted(topics)
    error = as_pipe_error(caught.value)
    assert isinstance(error, MissingDependencyError)
    assert error.hint == "pip install 'pipework[train]'"


def test_the_baseline_of_a_run_is_a_run(fitted, topics):
    steps = ("train.max_steps=2", "train.precision=fp32", "train.class_weights=[1,2]")
    run = fitted(topics, *steps, preset="tiny")
    baseline, alone = read_manifest(run).data.baseline, fitted(topics)
    assert baseline.name == "a linear SVM on tokens and token bigrams"
    assert (baseline.split, baseline.rows) == ("test", 60)
    assert baseline.scores == read_manifest(run / FOLDER).data.metrics["test"].scores
    rows = [Example(text=text) for text, _ in topics["test"]]
    np.testing.assert_array_equal(logits(run / FOLDER, rows), logits(alone, rows))
    assert "a linear SVM on tokens and token bigrams" in (run / "report.html").read_text()
    (engine,) = export(run / FOLDER, NullProgress(), settings=ExportSettings(speed_s=0))
    assert engine.parity.passed
    assert run_config(run / FOLDER).model.preset == "linear"
    with pytest.raises(ConfigError, match="is a linear model, which transformers does not have"):
        publish_folder(run / FOLDER, run / "published", NullProgress())
    with pytest.raises(ConfigError, match="is a linear model, which has no encoder to train"):
        fitted(topics, f"model.name={run / FOLDER}", preset="")


@pytest.mark.slow
def test_the_accuracy_on_headlines_is_as_expected(shared_data, tmp_path):
    root = f"data.root={shared_data / 'thucnews_headlines'}"
    train(load_config("thucnews", [root, "model.preset=linear"]), tmp_path / "a", NullProgress())
    assert 0.895 < score(tmp_path / "a", "test") < 0.91
