import pytest
from transformers import BertConfig

from pipework.errors import ConfigError
from pipework.export.importing.source_task import check_labels, source_task
from pipework.tasks.kinds import Metric
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.data import TaskSettings


def config(labels, **fields):
    return BertConfig(id2label=dict(enumerate(labels)), **fields)


@pytest.mark.parametrize(
    ("labels", "fields", "kind"),
    [
        (("b", "a"), {}, "single_label"),
        (("b", "a"), {"problem_type": "multi_label_classification"}, "multi_label"),
        (("LABEL_0",), {}, "regression"),
    ],
)
def test_the_kind_follows_the_problem_type_or_the_number_of_logits(labels, fields, kind):
    task = source_task("source", config(labels, **fields), TaskSettings())
    assert (task.kind, task.labels) == (kind, ("score",) if kind == "regression" else labels)


def test_the_settings_replace_kind_and_labels():
    settings = TaskSettings(kind="multi_label", labels=("x", "y"))
    task = source_task("source", config(("a", "b")), settings)
    assert (task.kind, task.labels) == ("multi_label", ("x", "y"))


def test_the_decision_of_a_published_model_is_dropped():
    decided = {"min_scores": (0.5,), "fallback_label": "other"}
    published = SingleLabelTask(labels=("a", "b"), metric=Metric.MATTHEWS, **decided)
    task = source_task("source", config(("a", "b")), TaskSettings(), published)
    assert task == published.model_copy(update={"min_scores": (), "fallback_label": None})


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"problem_type": "ranking"}, {}, "has the problem_type 'ranking'"),
        ({}, {"kind": "regression"}, "has 2 logits, which does not fit the task regression"),
        ({}, {"kind": "tokens"}, "has 2 logits, which does not fit the task tokens"),
        (
            {"architectures": ["BertForTokenClassification"]},
            {"kind": "single_label"},
            "has 2 logits for each token, which does not fit the task single_label",
        ),
        ({}, {"labels": ("a", "b", "c")}, "expected task.labels to be a list of 2 labels"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(fields, settings, message):
    with pytest.raises(ConfigError, match=message):
        source_task("source", config(("a", "b"), **fields), TaskSettings(**settings))


def test_labels_have_the_ids_of_the_logits():
    check_labels("source", config(("a", "b")))
    wrong = BertConfig(id2label={1: "a", 2: "b"})
    with pytest.raises(ConfigError, match="id2label has the ids"):
        check_labels("source", wrong)


@pytest.mark.parametrize(
    "name", ["\U0001f468\u200d\U0001f33e", "à\u00a0b", "\u0645\u06cc\u200c\u062e", 0]
)
def test_emoji_joined_letters_non_breaking_spaces_and_numbers_are_labels(name):
    assert source_task("source", config((name, "b")), TaskSettings()).labels == (str(name), "b")


@pytest.mark.parametrize("name", ["", " a", "a\u00a0", "a\nb", "a\0", "\x1b[31m", "a\u202eb", "b"])
def test_control_characters_outer_spaces_and_repeated_names_are_no_labels(name):
    with pytest.raises(ConfigError, match="expected distinct labels in a line"):
        source_task("source", config((name, "b")), TaskSettings())
