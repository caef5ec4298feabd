import json

import pytest

from pipework.data.examples import Source
from pipework.errors import DataError
from pipework.run_folder.read_options import Reading
from pipework.train.data_report.tables import tables
from tests.train.data_report.reports import encoder_of, report_of, sources


def test_a_label_missing_in_train_is_reported(tmp_path):
    report = report_of(
        sources(tmp_path, train=[("x", "a"), ("y", "b")], dev=[("z", "c"), ("w", "a")])
    )
    assert "dev has labels that train lacks: c" in report.findings


ID = "train: 30 different labels in 30 rows: the column may be an id or a text: check"
ID += " data.columns.label"
VALUES = ', or set task.kind = "regression" if the labels are values'
STARS = "train: the 5 labels are numbers from 1 to 5, learned as classes without an order: if they"
STARS += ' are values, set task.kind = "regression"'


@pytest.mark.parametrize(
    ("labels", "findings"),
    [
        ([f"row-{n}" for n in range(30)], [ID]),
        ([str(n / 8) for n in range(30)], [ID + VALUES]),
        ([str(n % 5 + 1) for n in range(30)], [STARS]),
        ([str(n % 2) for n in range(30)], []),
        ([f"{n % 5} stars" for n in range(30)], []),
        (list("abcdefgh"), []),  # too few rows to judge
    ],
)
def test_labels_that_are_probably_ids_or_values_are_reported(tmp_path, labels, findings):
    train = [(f"text {n}", label) for n, label in enumerate(labels)]
    dev = [(f"other {n}", label) for n, label in enumerate(dict.fromkeys(labels))]
    report = report_of(sources(tmp_path, train=train, dev=dev))
    assert list(report.findings) == findings


DIFFERENCE = "differ only by case, spaces or invisible characters: correct them in the data"


def test_labels_that_differ_by_case_or_spaces_are_reported(tmp_path):
    train = [("a", "Very good"), ("b", "very good"), ("c", "bad"), ("d", "very good")]
    report = report_of(sources(tmp_path, train=train, dev=[("e", "verygood"), ("f", "bad ")]))
    names = "'Very good' (1 row) and 'very good' (2 rows) and 'verygood' (1 row)"
    assert report.findings == (
        f"the labels {names} {DIFFERENCE}",
        "dev has labels that train lacks: verygood",
    )


def test_labels_in_two_unicode_forms_are_reported(tmp_path):
    train = [("a", "caf\u00e9"), ("b", "cafe\u0301"), ("c", "bad"), ("d", "b\u200bad")]
    text = "\n".join(report_of(sources(tmp_path, train=train)).findings)
    assert "the labels 'bad' (1 row) and 'b\\u200bad' (1 row) differ only by" in text
    assert "the labels 'cafe\\u0301' (1 row) and 'caf\u00e9' (1 row) differ only by" in text


def test_texts_that_the_tokenizer_makes_equal_are_reported(tmp_path):
    encoder = encoder_of(tmp_path / "t.json", ["ou", "la"])
    train = [("ou la", "a"), ("OU  la", "a"), ("la x", "b"), ("la y", "a"), ("la", "b")]
    report = report_of(sources(tmp_path, train=train), encoder)
    assert "train: 2 texts with the tokens of another text: lower-casing, or unknown" in "\n".join(
        report.findings
    )


def test_labels_without_rows_and_labels_of_all_rows_are_reported(tmp_path):
    files = sources(tmp_path, train=[("x", "a,c"), ("y", "b,c"), ("z", "c")])
    files["train"] = files["train"].reread(kind="multi_label", separator=",")
    report = report_of(files, labels=["a", "b", "c", "d"])
    assert report.findings == (
        "train: every row has the label c, which cannot be learned",
        "no row has the labels d of task.labels",
    )


def test_rows_without_any_of_several_labels_are_counted(tmp_path):
    path = tmp_path / "train.jsonl"
    labels = [["a"], ["b", "a"], *[[]] * 18]
    lines = (json.dumps({"text": f"t{n}", "label": label}) for n, label in enumerate(labels))
    path.write_text("\n".join(lines))
    report = report_of({"train": Source(path=path, reading=Reading(kind="multi_label"))})
    (finding,) = report.findings
    assert finding.startswith(
        'train: 18 rows (90%) without a label: set train.class_weights = "bal'
    )
    *_, (title, _, rows) = tables(report)
    assert (title, rows[:2]) == ("rows by label", [("without a label", "18"), ("a", "2")])


def test_the_finding_of_rare_labels_has_the_settings_to_change(tmp_path):
    rows = [(f"text {n}", "rare" if n < 3 else "common") for n in range(100)]
    dev = [(f"other {text}", label) for text, label in rows]
    report = report_of(sources(tmp_path, train=rows, dev=dev))
    rare = "labels with less than 10 % of the mean count: rare"
    advice = 'set train.class_weights = "balanced" and task.metric = "macro_f1" or "matthews"'
    assert report.findings == (f"train: {rare}: {advice}", f"dev: {rare}")


def test_rows_without_a_label_are_counted(tmp_path):
    files = sources(tmp_path, train=[("x", "a"), ("y", "-"), ("z", ""), ("w", "b")])
    source = files["train"].reread(skip_unlabelled=True, no_label=("-",))
    report = report_of({"train": source})
    assert (report.splits["train"].rows, report.splits["train"].skipped) == (2, 2)
    assert "train: 2 rows without a label left out" in report.findings


def label_studio(path, answers):
    """Write a task for each list of answers; an answer is a label, or None if it was cancelled."""
    tasks = [
        {
            "data": {"text": f"text {number}"},
            "annotations": [
                {
                    "was_cancelled": label is None,
                    "result": [{"value": {"choices": [label or "withdrawn"]}}],
                }
                for label in labels
            ],
        }
        for number, labels in enumerate(answers)
    ]
    path.write_text(json.dumps(tasks))
    return Reading(text="data.text", label="annotations.*.result.0.value.choices")


def test_the_most_frequent_label_of_several_annotators_is_taken(tmp_path):
    path = tmp_path / "tasks.json"
    columns = label_studio(path, ["a", "aa", "bab", [None, "b"], "ab", [None], []])
    source = Source(path=path, reading=columns).reread(skip_unlabelled=True)
    assert [row.label for row in source.rows()] == ["a", "a", "b", "b"]
    report = report_of({"train": source})
    disputed = "train: 2 rows with different labels of annotators"
    assert [*report.findings[:2]] == ["train: 3 rows without a label left out", disputed]


def test_other_labels_than_those_of_the_chosen_annotator_are_reported(tmp_path):
    path = tmp_path / "tasks.json"
    columns = label_studio(path, ["a", "aa", "bab", [None, "b"], [None, "a", "b"]])
    first = columns.model_copy(update={"label": "annotations.0.result.0.value.choices.0"})
    source = Source(path=path, reading=first)
    assert [row.label for row in source.rows()] == ["a", "a", "b", "b", "a"]
    assert (
        "train: 2 rows with different labels of annotators" in report_of({"train": source}).findings
    )
    path.write_text('[{"text": "a b", "kinds": [{"name": "a"}, {"name": "b"}]}]')
    source = Source(path=path, reading=Reading(text="text", label="kinds.0.name"))
    assert source.disputed_rows() == 0


def test_labels_that_are_equally_frequent_are_refused(tmp_path):
    path = tmp_path / "tasks.json"
    columns = label_studio(path, ["a", "abba"])
    with pytest.raises(
        DataError, match=r"2: .* found different labels, none most often: \[\['a'\], \['b'\], "
    ) as caught:
        list(Source(path=path, reading=columns).rows())
    assert caught.value.hint.endswith("or data.skip_unlabelled = true")


def test_the_order_of_the_labels_of_an_annotator_does_not_count(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "x", "labels": [["a", "b"], ["c"], ["b", "a"]]}))
    source = Source(path=path, reading=Reading(label="labels.*", kind="multi_label"))
    assert [{*row.label} for row in source.rows()] == [{"a", "b"}]


def test_annotators_of_several_labels_vote_on_each_and_those_of_numbers_give_a_median(tmp_path):
    path = tmp_path / "rows.jsonl"
    answers = {"labels": [["a"], ["a", "b"], ["a", "c"]], "scores": [3, 4, 9, 5]}
    path.write_text(json.dumps({"text": "x", **answers}))
    for kind, column, expected in (
        ("multi_label", "labels.*", ("a",)),
        ("regression", "scores.*", "4.5"),
    ):
        source = Source(path=path, reading=Reading(label=column, kind=kind))
        assert [row.label for row in source.rows()] == [expected]


def test_a_discarded_response_of_argilla_is_no_answer(tmp_path):
    path = tmp_path / "rows.jsonl"
    responses = [{"value": "a", "status": "discarded"}, {"value": "b", "status": "submitted"}]
    path.write_text(json.dumps({"text": "x", "label": responses}))
    for column in ("label.*.value", "label.0.value"):
        assert [row.label for row in Source(path=path, reading=Reading(label=column)).rows()] == [
            "b"
        ]
