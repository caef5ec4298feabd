"""The forms of data files in the table of train/README.md: each is read, or refused with a hint."""

import bz2
import gzip
import json
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipework.errors import PipeError
from pipework.train.config.data import DataSettings

README = Path(__file__).parents[3] / "train/README.md"
CSV = "text,label\nrain,a\ngoal,b\n"
TSV = CSV.replace(",", "\t")
ROWS = [{"text": "rain", "label": "a"}, {"text": "goal", "label": "b"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
MANY = [{"text": "rain", "label": ["a", "c"]}, {"text": "goal", "label": []}]
LABELS = ("a", "b", "c")
CLASSES = json.dumps(
    {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
)
SINGLE = [("rain", "a"), ("goal", "b")]
SEVERAL = [("rain", ("a", "c")), ("goal", ())]


def parquet(path, schema=None):
    pq.write_table(pa.Table.from_pylist(ROWS, schema=schema), path)


def class_labels(path):
    table = pa.table({"text": ["rain", "goal"], "label": [0, 1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": CLASSES}), path)


def arrow(path, opened):
    table = pa.Table.from_pylist(ROWS)
    with opened(path, table.schema) as writer:
        writer.write_table(table)


def zipped(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, CSV)


def folder(path):
    for text, label in SINGLE:
        (path / label).mkdir(parents=True)
        (path / label / "1.txt").write_text(text)


def rows(values):
    return "".join(json.dumps(value) + "\n" for value in values)


# By the first column of the table: name of the file, content, settings of [data].
TAKEN = {
    "csv": ("f.csv", CSV, {}),
    "csv with CRLF": ("f.csv", CSV.replace("\n", "\r\n"), {}),
    "csv with a byte order mark": ("f.csv", "\ufeff" + CSV, {}),
    "csv with quotes and line feeds": ("f.csv", 'text,label\n"rain",a\n"goal",b\n', {}),
    "csv with blanks in the header": ("f.csv", CSV.replace(",label", ", label"), {}),
    "suffix in capitals": ("F.CSV", CSV, {}),
    "names with blanks": (
        "f.csv",
        CSV.replace("text", "Review Text"),
        {"columns": {"text": "Review Text"}},
    ),
    "csv without header": (
        "f.csv",
        CSV.partition("\n")[2],
        {"columns": {"text": 0, "label": 1}},
    ),
    "csv with an index of pandas": ("f.csv", ",text,label\n0,rain,a\n1,goal,b\n", {}),
    "semicolons of Excel": ("f.csv", CSV.replace(",", ";"), {"delimiter": ";"}),
    "vertical bars": ("f.csv", CSV.replace(",", "|"), {"delimiter": "|"}),
    "several characters between columns": (
        "f.csv",
        CSV.replace(",", "||"),
        {"delimiter": "||", "quoting": False},
    ),
    "tsv": ("f.tsv", TSV, {}),
    "tab": ("f.tab", TSV, {}),
    "txt with tabs": ("f.txt", TSV, {}),
    "tsv with quotes": ("f.tsv", 'text\tlabel\n"rain"\ta\n"goal"\tb\n', {"quoting": True}),
    "tsv in a .csv file": ("f.csv", TSV, {"format": "tsv"}),
    "UTF-16 with a byte order mark": ("f.tsv", TSV.encode("utf-16"), {}),
    "UTF-16 without a mark": ("f.tsv", TSV.encode("utf-16-le"), {"encoding": "utf-16-le"}),
    "jsonl": ("f.jsonl", JSONL, {}),
    "ndjson": ("f.ndjson", JSONL, {}),
    "an object per line in .json": ("f.json", JSONL, {}),
    "a JSON array": ("f.json", json.dumps(ROWS, indent=1), {}),
    "a JSON array in .jsonl": ("f.jsonl", json.dumps(ROWS), {"format": "json"}),
    "JSON arrays of values": (
        "f.json",
        json.dumps(SINGLE),
        {"columns": {"text": 0, "label": 1}},
    ),
    "Label Studio": (
        "f.json",
        json.dumps(
            [
                {
                    "data": {"text": text},
                    "annotations": [{"result": [{"value": {"choices": [label]}}]}],
                }
                for text, label in SINGLE
            ]
        ),
        {
            "columns": {
                "text": "data.text",
                "label": "annotations.*.result.0.value.choices",
            }
        },
    ),
    "doccano": ("f.jsonl", rows({"text": text, "label": [label]} for text, label in SINGLE), {}),
    "Prodigy": (
        "f.jsonl",
        rows({"text": text, "accept": [label]} for text, label in SINGLE),
        {"columns": {"label": "accept"}},
    ),
    "Argilla": (
        "f.json",
        json.dumps(
            [
                {"fields": {"text": text}, "responses": {"label": [{"value": label}]}}
                for text, label in SINGLE
            ]
        ),
        {"columns": {"text": "fields.text", "label": "responses.label.*.value"}},
    ),
    "keys with points": (
        "f.jsonl",
        rows({"data.text": text, "label": label} for text, label in SINGLE),
        {"columns": {"text": "data.text"}},
    ),
    "spaCy, one category": (
        "f.jsonl",
        rows(
            [text, {"cats": {name: float(name == label) for name in "ab"}}]
            for text, label in SINGLE
        ),
        {"columns": {"text": 0, "label": "1.cats"}},
    ),
    "parquet": ("f.parquet", parquet, {}),
    "parquet, columns by number": ("f.parquet", parquet, {"columns": {"text": 0, "label": 1}}),
    "parquet with string_view": (
        "f.parquet",
        lambda path: parquet(path, pa.schema({"text": pa.string_view(), "label": pa.string()})),
        {},
    ),
    "parquet with a dictionary": (
        "f.parquet",
        lambda path: parquet(
            path, pa.schema({"text": pa.string(), "label": pa.dictionary(pa.int8(), pa.string())})
        ),
        {},
    ),
    "parquet with ClassLabel": ("f.parquet", class_labels, {}),
    "arrow, stream": ("f.arrow", lambda path: arrow(path, pa.ipc.new_stream), {}),
    "arrow, file (feather)": ("f.feather", lambda path: arrow(path, pa.ipc.new_file), {}),
    "fastText": ("f.txt", "__label__a rain\n__label__b goal\n", {"format": "fasttext"}),
    "a folder for each label": ("f", folder, {}),
    "gzip": ("f.csv.gz", gzip.compress(CSV.encode()), {}),
    "bzip2": ("f.csv.bz2", bz2.compress(CSV.encode()), {}),
    "xz": ("f.csv.xz", lzma.compress(CSV.encode()), {}),
    "Zstandard": ("f.jsonl.zst", pa.compress(JSONL.encode(), "zstd", asbytes=True), {}),
    "a zip archive of a file": ("f.csv.zip", lambda path: zipped(path, "f.csv"), {}),
    "true and false as labels": (
        "f.jsonl",
        rows([{"text": "rain", "label": True}, {"text": "goal", "label": False}]),
        {},
    ),
    "whole numbers as floats": (
        "f.jsonl",
        rows([{"text": "rain", "label": 1.0}, {"text": "goal", "label": 2.0}]),
        {},
    ),
    "rows without a label": (
        "f.jsonl",
        JSONL + rows([{"text": "x", "label": None}, {"text": "x"}, {"text": "x", "label": ""}]),
        {"skip_unlabelled": True},
    ),
    "a label for no label": ("f.csv", CSV + "x,-\n", {"no_label": ["-"]}),
}
ENCODED = {
    "cp1252": "Zürich",
    "latin-1": "Zürich",
    "cp1250": "Łódź",
    "cp1251": "дождь",
    "koi8-r": "дождь",
    "cp1256": "مطر",
    "cp932": "雨が降る",
    "euc-jp": "雨が降る",
    "euc-kr": "비가 온다",
    "big5": "下雨",
    "gb18030": "下雨",
    "tis-620": "ฝนตก",
}
MULTI = {
    "lists in jsonl": ("f.jsonl", rows(MANY), {}),
    "names with a separator": ("f.csv", "text,label\nrain,a;c\ngoal,\n", {"separator": ";"}),
    "lists of Python in csv": ("f.csv", "text,label\nrain,\"['a', 'c']\"\ngoal,[]\n", {}),
    "lists of JSON in tsv": ("f.tsv", 'text\tlabel\nrain\t["a", "c"]\ngoal\t[]\n', {}),
    "vectors in jsonl": (
        "f.jsonl",
        rows([{"text": "rain", "label": [1, 0, 1]}, {"text": "goal", "label": [0, 0, 0]}]),
        {},
    ),
    "vectors in csv": ("f.csv", 'text,label\nrain,"[1, 0, 1]"\ngoal,[0 0 0]\n', {}),
    "columns of 0 and 1": (
        "f.csv",
        "text,a,b,c\nrain,1,0,1\ngoal,0,0,0\n",
        {"columns": {"label": ["a", "b", "c"]}},
    ),
    "columns of 0 and 1, some -1": (
        "f.csv",
        "text,a,b,c\nrain,1,0,1\nx,-1,-1,-1\ngoal,0,0,0\n",
        {"columns": {"label": ["a", "b", "c"]}, "no_label": ["-1"]},
    ),
    "spaCy": (
        "f.jsonl",
        rows(
            {"text": text, "cats": {name: name in labels for name in LABELS}}
            for text, labels in SEVERAL
        ),
        {"columns": {"label": "cats"}},
    ),
    "several labels of fastText": (
        "f.txt",
        "__label__a __label__c rain\ngoal\n",
        {"format": "fasttext"},
    ),
}
PLACES = [(0, 3, "PER"), (8, 11, "PER")]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in PLACES]
SPANS = {
    "CoNLL": ("f.conll", "Ana\tB-PER\nmet\tO\nBob\tB-PER\n\t\nhi\tO\n", {}),
    "CoNLL with other columns": (
        "f.txt",
        "-DOCSTART- -X- O\n\nAna NNP S-PER\nmet VBD O\nBob NNP U-PER\n\nhi UH O\n",
        {"format": "conll"},
    ),
    "objects in jsonl": (
        "f.jsonl",
        rows([{"text": "Ana met Bob", "label": OBJECTS}, {"text": "hi", "label": []}]),
        {},
    ),
    "JSON in csv": (
        "f.csv",
        'text,label\nAna met Bob,"[[0, 3, ""PER""], [8, 11, ""PER""]]"\nhi,[]\n',
        {},
    ),
    "presidio": (
        "f.json",
        json.dumps(
            [
                {
                    "full_text": "Ana met Bob",
                    "spans": [
                        {"entity_type": label, "start_position": start, "end_position": end}
                        for start, end, label in PLACES
                    ],
                },
                {"full_text": "hi", "spans": []},
            ]
        ),
        {"columns": {"text": "full_text", "label": "spans"}},
    ),
    "spans of Label Studio": (
        "f.json",
        json.dumps(
            [
                {
                    "data": {"text": text},
                    "annotations": [
                        {
                            "result": [
                                {"value": {"start": start, "end": end, "labels": [label]}}
                                for start, end, label in places
                            ]
                        }
                    ],
                }
                for text, places in [("Ana met Bob", PLACES), ("hi", [])]
            ]
        ),
        {"columns": {"text": "data.text", "label": "annotations.*.result"}},
    ),
    "spans of doccano": (
        "f.jsonl",
        rows([{"text": "Ana met Bob", "label": PLACES}, {"text": "hi", "label": []}]),
        {},
    ),
    "spans of Prodigy": (
        "f.jsonl",
        rows([{"text": "Ana met Bob", "spans": OBJECTS}, {"text": "hi", "spans": []}]),
        {"columns": {"label": "spans"}},
    ),
    "spans of spaCy": (
        "f.jsonl",
        rows([["Ana met Bob", {"entities": PLACES}], ["hi", {"entities": []}]]),
        {"columns": {"text": 0, "label": 1}},
    ),
}
# Also the words of the message or of the hint.
REFUSED = {
    "semicolons without a setting": ("f.csv", CSV.replace(",", ";"), 'set data.delimiter = ";"'),
    "tabs in a .csv file": ("f.csv", TSV, 'set data.format = "tsv"'),
    "fastText without a setting": ("f.txt", "__label__a rain\n", 'data.format = "fasttext"'),
    "another encoding": ("f.csv", "text,label\né,a\n".encode("cp1252"), "set data.encoding"),
    "a line sep=; of Excel": ("f.csv", "sep=;\ntext;label\n", "remove the first line"),
    "lines that end with CR": ("f.csv", CSV.replace("\n", "\r"), "found CR alone"),
    "a JSON array without a setting": ("f.jsonl", json.dumps(ROWS), 'data.format = "json"'),
    "an object that holds the array": ("f.json", json.dumps({"data": ROWS}), "expected an array"),
    "a workbook of Excel": (
        "f.csv",
        lambda path: zipped(path, "[Content_Types].xml"),
        "is a spreadsheet",
    ),
    "a workbook by its suffix": ("f.xlsx", b"PK\3\4", "save it as CSV UTF-8"),
    "an archive of several files": ("f.csv.zip", lambda path: zipped(path, "a", "b"), "found 2"),
    "tar": ("f.tar.gz", b"", "unpack it"),
    "pickle": ("f.pkl", b"", "with to_parquet of pandas"),
    "XML": ("f.xml", "<a/>", "convert it to csv, jsonl or parquet"),
    "parquet in a .csv file": ("f.csv", b"PAR1", 'set data.format = "parquet"'),
    "a damaged parquet file": ("f.parquet", b"PAR1", "cannot be read as parquet"),
    "a damaged gzip file": ("f.csv.gz", gzip.compress(CSV.encode())[:-9], "it is damaged"),
    "a folder of files": (
        "",
        lambda path: (path / "a.txt").write_text("a"),
        "folder for each label",
    ),
    "one of several columns of 0 and 1": (
        "f.csv",
        "text,label,b\nrain,1,0\n",
        "list of their names",
    ),
    "arrays of numpy as text": ("f.csv", "text,label\nrain,['a' 'c']\n", "expected commas"),
}


def write(path, content):
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def read(tmp_path, name, content, settings, kind="single_label"):
    write(tmp_path / name, content)
    data = DataSettings.model_validate({"root": tmp_path, "train": name, "dev": name, **settings})
    return [(row.text, row.label) for row in data.splits(kind, LABELS)["train"].rows()]


@pytest.mark.parametrize("form", TAKEN)
def test_a_form_with_one_label_is_taken(tmp_path, form):
    found = read(tmp_path, *TAKEN[form])
    assert [text for text, _ in found] == ["rain", "goal"]
    labels = {"true and false as labels": ["true", "false"], "whole numbers as floats": ["1", "2"]}
    assert [label for _, label in found] == labels.get(form, ["a", "b"])


@pytest.mark.parametrize("encoding", ENCODED)
def test_an_encoding_is_taken_by_its_setting(tmp_path, encoding):
    content = f"text,label\n{ENCODED[encoding]},a\n".encode(encoding)
    assert read(tmp_path, "f.csv", content, {"encoding": encoding}) == [(ENCODED[encoding], "a")]


@pytest.mark.parametrize("form", MULTI)
def test_a_form_with_several_labels_is_taken(tmp_path, form):
    assert read(tmp_path, *MULTI[form], "multi_label") == SEVERAL


@pytest.mark.parametrize("form", SPANS)
def test_a_form_with_spans_is_taken(tmp_path, form):
    expected = [("Ana met Bob", tuple(map(tuple, PLACES))), ("hi", ())]
    assert read(tmp_path, *SPANS[form], "tokens") == expected


def test_the_characters_of_a_script_without_blanks_are_joined(tmp_path):
    content = "王 B-NAME\n明 E-NAME\n1 O\n年 O\n\n安 S-X\n\na O\nb O\n"
    found = read(tmp_path, "f.bmes", content, {"format": "conll"}, "tokens")
    assert found == [("王明1年", ((0, 2, "NAME"),)), ("安", ((0, 1, "X"),)), ("a b", ())]


def test_rows_without_spans_are_kept_and_rows_without_annotations_left_out(tmp_path):
    content = rows([{"text": "a", "label": []}, {"text": "b", "label": None}, {"text": "c"}])
    settings = {"skip_unlabelled": True}
    assert read(tmp_path, "f.jsonl", content, settings, "tokens") == [("a", ())]


def test_a_token_of_conll_may_have_other_blanks(tmp_path):
    found = read(tmp_path, "f.conll", "10\u00a0000\tB-NUM\nx\tO\n", {}, "tokens")
    assert found == [("10\u00a0000 x", ((0, 6, "NUM"),))]


def test_a_line_of_conll_without_a_tag_is_an_error(tmp_path):
    with pytest.raises(PipeError, match=r"f\.conll:2: expected a token and its tag, found 'met'"):
        read(tmp_path, "f.conll", "Ana B-PER\nmet\n", {}, "tokens")


def test_a_span_outside_of_its_text_is_an_error(tmp_path):
    content = rows([{"text": "Ana", "label": [[0, 4, "PER"]]}])
    with pytest.raises(PipeError, match=r"f\.jsonl:1: expected a span within the text"):
        read(tmp_path, "f.jsonl", content, {}, "tokens")


@pytest.mark.parametrize("form", REFUSED)
def test_a_form_is_refused_with_the_next_step(tmp_path, form):
    name, content, words = REFUSED[form]
    several = form in ("one of several columns of 0 and 1", "arrays of numpy as text")
    kind = "multi_label" if several else "single_label"
    with pytest.raises(PipeError) as caught:
        read(tmp_path, name, content, {}, kind)
    assert words in f"{caught.value}: {caught.value.hint}"


def test_the_table_of_the_documents_has_each_form():
    section = README.read_text().partition("### Forms of data files")[2].partition("\n## ")[0]
    forms = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    encodings = [f"`{name}`" for name in ENCODED]
    assert forms[1:] == [*TAKEN, *encodings, *MULTI, *SPANS, *REFUSED]
