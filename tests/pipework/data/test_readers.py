import pytest

from pipework.data.readers import Columns, Format, read_rows
from pipework.errors import DataError

RECORD = '7\t"A <e1>cup</e1> of ""<e2>tea</e2>""."\r\nContent-Container(e2,e1)\r\nComment:\r\n\r\n'


def read(tmp_path, content, columns=None):
    path = tmp_path / "TRAIN.TXT"
    path.write_bytes(content.encode())
    return list(read_rows(path, Format.SEMEVAL, columns or Columns(), header=False))


def test_semeval_records_keep_inner_quotes_and_may_have_crlf(tmp_path):
    first, second = read(tmp_path, RECORD + RECORD.rstrip())
    assert first.text == 'A <e1>cup</e1> of ""<e2>tea</e2>"".'
    assert (first.label, first.line) == ("Content-Container(e2,e1)", 1)
    assert second.line == 5


def test_extra_blank_lines_and_comment_text_are_accepted(tmp_path):
    text = "\n\n" + RECORD.replace("Comment:", "Comment: not a collection") + "\n\n"
    assert [row.line for row in read(tmp_path, text)] == [3]


def test_labels_are_not_read_without_a_label_column(tmp_path):
    assert read(tmp_path, RECORD, Columns(label=None))[0].label is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("7\t", "", r"TRAIN\.TXT:5: expected NUMBER<TAB>\"SENTENCE\", found"),
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
    columns = Columns(label=None)
    rows = list(read_rows(path, Format.TEXT, columns, header=False))
    assert [row.text for row in rows] == ["first, with\ta tab", "second", "third"]
    assert [row.line for row in rows] == [2, 3, 6]
    rows = list(read_rows(path, Format.DOCUMENTS, columns, header=False))
    assert [row.text for row in rows] == ["first, with\ta tab\nsecond", "third"]
    assert [row.line for row in rows] == [2, 6]


def test_a_very_long_document_is_split(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\n".join(f"segment {number}" for number in range(2500)))
    rows = list(read_rows(path, Format.DOCUMENTS, Columns(label=None), header=False))
    assert [row.line for row in rows] == [1, 1001, 2001]
    assert sum(len(row.text.split("\n")) for row in rows) == 2500
