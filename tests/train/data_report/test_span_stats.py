"""Findings about spans that cannot be learned, and about texts made from templates."""

import json

import pytest

from pipework.data.examples import Example
from pipework.progress import NullProgress
from pipework.tasks.spans import parse_spans
from pipework.train.data_report.data_report import check_files
from pipework.train.data_report.span_stats import SpanStats

NAMES = ("Ana", "Bob", "Cem", "Duy", "Eva", "Finn", "Gro", "Hai")


def row(text, *found):
    spans = [(text.index(part), text.index(part) + len(part), label) for part, label in found]
    return {"text": text, "spans": [[*span] for span in spans]}


def findings(folder, **files):
    paths = []
    for name, rows in files.items():
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(one) + "\n" for one in rows))
    overrides = ["task.kind=tokens", "data.columns.label=spans", "data.near_duplicates=0"]
    return check_files(paths, overrides, NullProgress()).findings


def test_spans_that_overlap_or_cut_a_word_are_counted():
    rows = [
        row("New York City is big", ("New York", "LOC"), ("York City", "LOC"), ("City", "LOC")),
        row("Parisian life", ("Paris", "LOC")),
        row("in (Paris).", ("Paris", "LOC")),
        row("none"),
    ]
    stats = SpanStats()
    stats.add([Example(text=one["text"], label=parse_spans(one["spans"])) for one in rows])
    assert (stats.overlapping, stats.inside_words) == (2, 1)


@pytest.mark.parametrize(("shared", "said"), [(0, False), (5, True)])
def test_rows_of_a_template_in_two_files_are_a_finding(tmp_path, shared, said):
    train = [row(f"please call {name} at noon", (name, "PER")) for name in NAMES[:4]]
    test = [row(f"my friend is {name} today", (name, "PER")) for name in NAMES]
    test += [row(f"please call {name}  at NOON", (name, "PER")) for name in NAMES[4:][:shared]]
    found = findings(tmp_path, train=train, test=test)
    lines = [line for line in found if "with other spans" in line]
    assert bool(lines) is said
    assert all(line.startswith("4 rows of ") for line in lines)


def test_a_text_that_is_only_a_span_is_no_template(tmp_path):
    train, test = ([row(name, (name, "PER")) for name in half] for half in (NAMES[:4], NAMES[4:]))
    assert not any(
        "with other spans" in line for line in findings(tmp_path, train=train, test=test)
    )
