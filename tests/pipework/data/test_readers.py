import pytest

from pipework.data.readers import Columns, Format, records
from pipework.errors import DataError

RECORD = '7\t"A <e1>cup</e1> of ""<e2>tea</e2>""."\r\nContent-Container(e2,e1)\r\nComment:\r\n\r\n'


def read(tmp_path, content, columns=None):
    path = tmp_path / "TRAIN.TXT"
    path.write_bytes(content.encode())
    return list(records(path, Format.SEMEVAL, columns or Columns(), header=False))


def test_official_records_keep_inner_quotes_and_may_end_lines_as_windows_does(tmp_path):
    first, second = read(tmp_path, RECORD + RECORD.rstrip())
    assert first.text == 'A <e1>cup</e1> of ""<e2>tea</e2>"".'
    assert (first.label, first.line) == ("Content-Container(e2,e1)", 1)
    assert second.line == 5


def test_more_blank_lines_and_a_comment_with_words_are_no_fault(tmp_path):
    text = "\n\n" + RECORD.replace("Comment:", "Comment: not a collection") + "\n\n"
    assert [one.line for one in read(tmp_path, text)] == [3]


def test_labels_are_left_out_where_they_are_not_wanted(tmp_path):
    assert read(tmp_path, RECORD, Columns(label=None))[0].label is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("7\t", "", r"TRAIN\.TXT:5: expected NUMBER<TAB>\"SENTENCE\", found"),
        (
            "\r\nContent-Container(e2,e1)\r\nComment:",
            "",
            r"TRAIN\.TXT:5: expected relation and Comment: below this, found nothing",
        ),
        ("\r\nComment:", "", r"TRAIN\.TXT:5: .* found Content-Container\(e2,e1\)$"),
        ("Comment:", "Remark:", r"TRAIN\.TXT:5: .* found Content-Container\(e2,e1\) / Remark:"),
        ("\r\n\r\n", "\r\n" + RECORD, r"TRAIN\.TXT:5: .* / Comment: / 7"),
    ],
)
def test_a_broken_record_is_told_with_its_line(tmp_path, old, new, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, RECORD + RECORD.replace(old, new, 1))


def test_a_text_a_line_and_a_segment_a_line(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\nfirst, with\ta tab\r\nsecond\n  \n\nthird\n")
    columns = Columns(label=None)
    found = list(records(path, Format.TEXT, columns, header=False))
    assert [one.text for one in found] == ["first, with\ta tab", "second", "third"]
    assert [one.line for one in found] == [2, 3, 6]
    found = list(records(path, Format.DOCUMENTS, columns, header=False))
    assert [one.text for one in found] == ["first, with\ta tab\nsecond", "third"]
    assert [one.line for one in found] == [2, 6]


def test_a_document_without_end_is_read_in_parts(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\n".join(f"segment {number}" for number in range(2500)))
    found = list(records(path, Format.DOCUMENTS, Columns(label=None), header=False))
    assert [one.line for one in found] == [1, 1001, 2001]
    assert sum(len(one.text.split("\n")) for one in found) == 2500
