"""Wrong data files of `pipe train` and `pipe check`."""

import json

from tests.end_to_end.wrong_inputs.wrong_input import TRAIN, TRAIN_COMMAND, WrongInput, refused

REGRESSION = " --set task.kind=regression"
MULTI = " --set task.kind=multi_label"
JSONL = " --set data.train=train.jsonl"
CSV = " --set data.train=train.csv"
SEMEVAL = " --set data.format=semeval"
MARKED = " --set data.marked=true"


def data(
    content: str | bytes | None, error: str, more: str = "", name: str = "train.tsv"
) -> WrongInput:
    """Return a training whose file `name` has this content."""
    return WrongInput(command=TRAIN_COMMAND + more, files={name: content}, error=error)


def jsonl(row: object, error: str, more: str = "") -> WrongInput:
    """Return a training whose second row in train.jsonl is `row`."""
    good = {"text": "a b", "label": ["a"] if more == MULTI else "a", "e": [[0, 1], [2, 3]]}
    content = "\n".join((json.dumps(good), row if isinstance(row, str) else json.dumps(row), ""))
    return data(content, error, JSONL + more, "train.jsonl")


def csv(content: str, error: str) -> WrongInput:
    """Return a training with train.csv."""
    return data(content, error, CSV, "train.csv")


def semeval(content: str, error: str) -> WrongInput:
    """Return a training with a file of SemEval-2010 task 8."""
    return data(content, error, SEMEVAL)


def marked(text: str, error: str) -> WrongInput:
    """Return a training with a text whose entities are wrong."""
    return data(f"text\tlabel\n{text}\ta\n", error, MARKED)


FILES = {
    "no train file": data(None, "train.tsv is not a file"),
    "no dev file": data(None, "dev.tsv is not a file", name="dev.tsv"),
    "no test file": data(None, "test.tsv is not a file", " --set data.test=test.tsv", "test.tsv"),
    "an empty train file": data("", "train.tsv is empty, expected rows"),
    "a header without rows": data(
        "text\tlabel\n", "expected 2 or more distinct labels, found 0: ()"
    ),
    "a dev header without rows": data("text\tlabel\n", "dev.tsv holds no rows", name="dev.tsv"),
    "a column twice": data(
        "text\ttext\tlabel\na\tb\tc\n", "train.tsv:1: expected one column 'text', found 2"
    ),
    "a row with a column less": data(
        TRAIN + "alone\n", "train.tsv:18: expected 2 columns as in the first line, found 1"
    ),
    "a label that is empty": data(TRAIN + "no label\t\n", "train.tsv:18: the label is empty"),
    "a packed file": data(
        b"\x1f\x8b\x08\0\0\0",
        "t.gz cannot be read: Compressed file ended before the end-of-stream marker was reached",
        " --set data.train=t.gz --set data.format=tsv",
        "t.gz",
    ),
    "Latin-1": data(
        TRAIN.encode() + "déjà vu\tweather\n".encode("latin-1"),
        "train.tsv:18: not UTF-8 (byte 1: invalid continuation byte)",
    ),
    "UTF-16 without a mark": data(
        TRAIN.encode("utf-16-le"), "train.tsv:1: expected text, found the character NUL"
    ),
}
TABLES = {
    "csv without the end of a quote": csv(
        'text,label\n"a,x\nb,y\n', "train.csv:3: not CSV: unexpected end of data"
    ),
    "json that is cut": jsonl(
        '{"text": "a"',
        "train.jsonl:2: not JSON: Expecting ',' delimiter: line 1 column 13 (char 12)",
    ),
    "json that is a list": jsonl(
        [[1]], "train.jsonl:2: expected an object, found an array of rows"
    ),
    "json without text": jsonl(
        {"label": "a"},
        "train.jsonl:2: expected a value at 'text' (the default name), found nothing",
    ),
    "json with null": jsonl(
        {"text": None, "label": "a"},
        "train.jsonl:2: expected a value at 'text' (the default name), found null",
    ),
    "json with a number as text": jsonl(
        {"text": 1.5, "label": "a"}, "train.jsonl:2: expected a string at 'text', found float"
    ),
    "json with a list of labels": jsonl(
        {"text": "a", "label": ["a", "b"]}, "train.jsonl:2: expected one label, found 2: ['a', 'b']"
    ),
    "json with half a character": jsonl(
        '{"text": "\\ud800", "label": "a"}',
        "train.jsonl:2: a text is not valid Unicode: it contains a lone surrogate (\\uD800)",
    ),
    "json of great depth": jsonl(
        '{"text": ' + "[" * 100_000,
        "train.jsonl:2: not JSON: maximum recursion depth exceeded while decoding a "
        "JSON array from a unicode string",
    ),
    "json with a long number": jsonl(
        '{"text": ' + "1" * 5000 + ', "label": "a"}',
        "train.jsonl:2: not JSON: Exceeds the limit (4300 digits) for integer string "
        "conversion: value has 5000 digits; use sys.set_int_max_str_digits() to "
        "increase the limit",
    ),
    "a word as target": data(
        TRAIN, "train.tsv:2: expected a number as label, found 'weather'", REGRESSION
    ),
    "equal targets": WrongInput(
        command=TRAIN_COMMAND + REGRESSION,
        files=dict.fromkeys(("train.tsv", "dev.tsv"), "text\tlabel\na\t1\nb\t1\n"),
        error="expected different targets in train, found 1 in every row",
    ),
    "labels in one cell": data(
        TRAIN, "train.tsv:2: expected a list of labels, found a string", MULTI
    ),
    "labels with an empty one": jsonl(
        {"text": "a", "label": ["a", ""]}, "train.jsonl:2: the label is empty", MULTI
    ),
    "labels as an object": jsonl(
        {"text": "a", "label": {"a": 2}},
        "train.jsonl:2: expected 0 or 1 for the label 'a', found 2",
        MULTI,
    ),
    "semeval without marks": semeval(
        '1\t"a b"\nOther\nComment:\n', "train.tsv:1: expected <e1> once, found it 0 times"
    ),
    "a text without marks": marked("a b", "train.tsv:2: expected <e1> once, found it 0 times"),
}
CHECKS = {
    "check without input": refused("check", "Missing argument 'inputs'."),
    "a list of leaked rows as text": refused(
        "check train.tsv --rows out.txt", "out.txt: expected a file ending in .csv"
    ),
    "a list of leaked rows in an absent folder": refused(
        "check train.tsv --rows no/out.csv",
        "no/out.csv cannot be written: expected a file path in an existing folder",
    ),
    "check of a folder": refused("check .", ".: expected a folder for each label, found 3 files"),
    "check of a config and a file": refused(
        "check config.toml dev.tsv", "config.toml: no file format is known for the suffix '.toml'"
    ),
    "check of files with a wrong key": refused(
        "check train.tsv --set data.colums.text=a",
        "--set data.colums: unknown key",
    ),
    "check of files with a wrong column": refused(
        "check train.tsv --set data.columns.text=a", "train.tsv:1: no column 'a'; found text, label"
    ),
}
