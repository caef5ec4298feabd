import pytest

from pipework.errors import DataError
from pipework.examples import Columns, Example, Source, parse_columns, resolve_label, split_pair

NUMBERS = Columns(text=0, label=1)


def read(path, content, columns=None, **how):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(Source(path=path, columns=columns or Columns(), **how).rows())


def test_tsv_knows_no_quotes(tmp_path):
    rows = read(tmp_path / "a.tsv", 'text\tlabel\n"a stray quote\t1\nsecond\t0\n')
    assert [row.text for row in rows] == ['"a stray quote', "second"]


def test_csv_quotes_hold_commas_line_ends_and_quotes(tmp_path):
    rows = read(tmp_path / "a.csv", 'text,label\n"a, ""b""\nc",1\n')
    assert rows == [Example(text='a, "b"\nc', label="1")]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_byte_order_mark_and_crlf_are_not_content(tmp_path, name):
    forms = {
        "a.tsv": "text\tlabel\r\nx\ty\r\n",
        "a.csv": "text,label\r\nx,y\r\n",
        "a.jsonl": '{"text": "x", "label": "y"}\r\n',
    }
    rows = read(tmp_path / name, b"\xef\xbb\xbf" + forms[name].encode())
    assert rows == [Example(text="x", label="y")]


def test_only_a_line_feed_ends_a_line(tmp_path):
    text = "one\u2028still one\x0band\x85too"
    assert read(tmp_path / "a.tsv", f"{text}\t1\n", NUMBERS)[0].text == text


def test_columns_by_number_take_the_first_line_as_a_row(tmp_path):
    assert len(read(tmp_path / "a.txt", "x\t0\ny\t1\n", NUMBERS)) == 2


def test_columns_by_number_with_a_header_skip_it(tmp_path):
    rows = read(
        tmp_path / "a.tsv",
        "q\tid\tone\ttwo\n1\t7\ta\tb\n",
        Columns(text=2, text_pair=3, label=0),
        header=True,
    )
    assert rows == [Example(text="a", text_pair="b", label="1")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\nok\t1\nbroken\n", r"a\.tsv:3: expected 2 columns.*found 1"),
        ("a.tsv", "text\tlabel\nx\t \n", r"a\.tsv:2: the label is empty"),
        ("a.tsv", "body\tlabel\nx\t1\n", r"a\.tsv:1: no column 'text'; found body, label"),
        ("a.csv", 'text,label\n"open,1\n', r"a\.csv:2: not CSV"),
        ("a.jsonl", '{"text": "x", "label": "1"}\n{"text"\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", '{"label": "1"}\n', r"a\.jsonl:1: expected a string at 'text', found nothing"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1: expected an object, found list"),
        ("a.tsv", "", "is empty"),
        ("a.xml", "", "cannot tell the format"),
        ("a.tsv", b"text\tlabel\n\xff\xfe\t1\n", r"a\.tsv:2: not UTF-8"),
        ("a.jsonl", '{"text": "\\ud800", "label": "1"}\n', r"a\.jsonl:1: a text is not Unicode"),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, content)


def test_a_column_number_out_of_range_is_told(tmp_path):
    with pytest.raises(DataError, match="no column 5; found 2 columns"):
        read(tmp_path / "a.tsv", "x\ty\n", Columns(text=5, label=1))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        list(Source(path=tmp_path / "none.tsv", columns=NUMBERS).rows())


def test_a_blank_line_is_no_row_but_stays_inside_quotes(tmp_path):
    rows = read(tmp_path / "a.csv", 'text,label\n\n"one\n\ntwo",1\n\nthree,0\n')
    assert [row.text for row in rows] == ["one\n\ntwo", "three"]
    assert len(read(tmp_path / "a.tsv", "x\t1\n\ny\t0\n", NUMBERS)) == 2


def test_lines_are_counted_with_the_blank_ones(tmp_path):
    with pytest.raises(DataError, match=r"a\.tsv:4: expected 2 columns"):
        read(tmp_path / "a.tsv", "text\tlabel\n\nx\t1\nbroken\n")


def test_a_file_without_labels_keeps_its_header(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\ttopic\nx\t1\n")
    source = Source(path=path, columns=Columns(text=0, label="topic"))
    assert list(source.unlabelled().rows()) == [Example(text="x")]


@pytest.mark.parametrize("found", ["3", "0", "9"])
def test_where_names_are_numbers_a_number_is_only_a_name(found):
    assert resolve_label(found, {"1": 0, "2": 1, "4": 2}) is None


@pytest.mark.parametrize(
    ("found", "place"), [("sport", 0), ("1", 1), ("2", None), ("-1", None), ("\u0661", None)]
)
def test_a_label_is_a_name_or_else_a_number(found, place):
    assert resolve_label(found, {"sport": 0, "finance": 1}) == place


def test_a_name_that_is_a_number_stays_a_name():
    assert resolve_label("1", {"1": 0, "0": 1}) == 0


def test_a_tab_makes_a_pair():
    assert split_pair("a\tb") == Example(text="a", text_pair="b")
    assert split_pair("a b") == Example(text="a b")


def test_columns_are_parsed_from_an_option():
    assert parse_columns("text=3, text_pair=second") == Columns(
        text=3, text_pair="second", label=None
    )
    with pytest.raises(DataError, match="expected text=COLUMN"):
        parse_columns("body=3")


def test_the_real_files_give_the_rows_their_sources_state(shared_data):
    headlines = Source(path=shared_data / "thucnews_headlines" / "train_45000.txt", columns=NUMBERS)
    assert sum(1 for _ in headlines.rows()) == 45_000
    pairs = Columns(text=3, text_pair=4, label=0)
    for name, count in (("train.tsv", 3668), ("dev.tsv", 408), ("msr_paraphrase_test.txt", 1725)):
        source = Source(path=shared_data / "mrpc" / name, columns=pairs, format="tsv", header=True)
        rows = list(source.rows())
        assert len(rows) == count
        assert {row.label for row in rows} == {"0", "1"}
