import pytest

from pipework.data import readers
from pipework.data.examples import Source
from pipework.data.readers import MAX_FIELD, format_from_suffix
from pipework.errors import DataError
from pipework.run_folder.read_options import Format, Reading

RECORD = '7\t"A <e1>cup</e1> of ""<e2>tea</e2>""."\r\nContent-Container(e2,e1)\r\nComment:\r\n\r\n'


def read_rows(path, file_format, columns, *, header):
    source = Source(path=path, reading=columns).reread(format=file_format, header=header)
    return readers.read_rows(path, source.read_options())


def read(tmp_path, content, columns=None):
    path = tmp_path / "TRAIN.TXT"
    path.write_bytes(content.encode())
    return list(read_rows(path, Format.SEMEVAL, columns or Reading(), header=False))


def test_semeval_records_keep_inner_quotes_and_may_have_crlf(tmp_path):
    first, second = read(tmp_path, RECORD + RECORD.rstrip())
    assert first.text == 'A <e1>cup</e1> of ""<e2>tea</e2>"".'
    assert (first.label, first.line) == ("Content-Container(e2,e1)", 1)
    assert second.line == 5


def test_extra_blank_lines_and_comment_text_are_accepted(tmp_path):
    text = "\n\n" + RECORD.replace("Comment:", "Comment: not a collection") + "\n\n"
    assert [row.line for row in read(tmp_path, text)] == [3]


def test_labels_are_not_read_without_a_label_column(tmp_path):
    assert read(tmp_path, RECORD, Reading(label=None))[0].label is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("7\t", "", r"TRAIN\.TXT:5: expected NUMBER<TAB>\"SENTENCE\", found '\"A <e1>cup"),
        (
            "\r\nContent-Container(e2,e1)\r\nComment:",
            "",
            r"TRAIN\.TXT:5: expected relation and Comment: next, found nothing",
        ),
        ("\r\nComment:", "", r"TRAIN\.TXT:5: .* found Content-Container\(e2,e1\)$"),
        ("Comment:", "Remark:", r"TRAIN\.TXT:5: .* found Content-Container\(e2,e1\) / Remark:"),
        ("\r\n\r\n", "\r\n" + RECORD, r"TRAIN\.TXT:5: .* / Comment: / 7"),
    ],
)
def test_a_broken_record_is_reported_with_its_line(tmp_path, old, new, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, RECORD + RECORD.replace(old, new, 1))


def test_text_and_documents_formats_are_read(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\nfirst, with\ta tab\r\nsecond\n  \n\nthird\n")
    columns = Reading(label=None)
    rows = list(read_rows(path, Format.TEXT, columns, header=False))
    assert [row.text for row in rows] == ["first, with\ta tab", "second", "third"]
    assert [row.line for row in rows] == [2, 3, 6]
    rows = list(read_rows(path, Format.DOCUMENTS, columns, header=False))
    assert [row.text for row in rows] == ["first, with\ta tab\nsecond", "third"]
    assert [row.line for row in rows] == [2, 6]


def test_a_very_long_document_is_split(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\n".join(f"segment {number}" for number in range(2500)))
    rows = list(read_rows(path, Format.DOCUMENTS, Reading(label=None), header=False))
    assert [row.line for row in rows] == [1, 1001, 2001]
    assert sum(len(row.text.split("\n")) for row in rows) == 2500


def test_the_hint_names_no_encoding_that_is_a_guess(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes("text,label\n今日は晴れ,a\n".encode("cp932"))
    with pytest.raises(DataError, match=r"f\.csv:2: not UTF-8 \(byte 0") as caught:
        list(read_rows(path, Format.CSV, Reading(), header=True))
    assert caught.value.hint.startswith("set data.encoding of pipe train and check: cp1252 of")


@pytest.mark.parametrize("name", ["text", "label"])
def test_a_repeated_column_name_is_refused(tmp_path, name):
    path = tmp_path / "f.csv"
    path.write_text(f"text,{name},label\na,b,c\n")
    with pytest.raises(DataError, match=f"expected one column '{name}', found 2"):
        list(read_rows(path, Format.CSV, Reading(), header=True))
    other = Reading(text=0, label=2)
    (row,) = read_rows(path, Format.CSV, other, header=True)
    assert (row.text, row.label) == ("a", "c")


def test_a_csv_field_may_be_longer_than_python_reads_by_default(tmp_path):
    path, text = tmp_path / "f.csv", "word, " * 30_000
    path.write_text(f'text,label\n"{text}",b\n')
    (row,) = read_rows(path, Format.CSV, Reading(), header=True)
    assert row.text == text
    path.write_text(f'text,label\n"{"a" * (MAX_FIELD + 1)}",b\n')  # as after a quote without end
    with pytest.raises(DataError, match=r"f\.csv:2: not CSV: field larger than field limit"):
        list(read_rows(path, Format.CSV, Reading(), header=True))


def test_the_hint_for_an_unknown_suffix_has_the_known_ones(tmp_path):
    with pytest.raises(DataError, match=r"no file format is known for the suffix '\.dat'") as error:
        format_from_suffix(tmp_path / "f.dat")
    assert error.value.hint.startswith("rename it to .csv, .tsv, .tab, .txt, .jsonl, .ndjson")


@pytest.mark.parametrize(
    ("name", "header", "hint"),
    [
        ("rows.tsv", "text,label", 'commas: set data.format = "csv", or rename the file to .csv'),
        ("rows.tsv", "text", "set data.columns.label, or --columns of pipe eval, to a column name"),
        ("rows.tsv", "body", "data.columns.text, or --columns of pipe predict, eval and bench, to"),
    ],
)
def test_the_hint_names_another_separator(name, header, hint, tmp_path):
    path = tmp_path / name
    path.write_text(f"{header}\nrain{header[4:5]}a\n")
    with pytest.raises(DataError) as error:
        list(read_rows(path, format_from_suffix(path), Reading(), header=True))
    assert hint in error.value.hint
