import pytest

from pipework.data.examples import Example, Source, parse_columns, split_pair
from pipework.errors import DataError
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Format, Reading

NUMBERS = Reading(text=0, label=1)


def read(path, content, columns=None, **how):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(Source(path=path, reading=columns or Reading()).reread(**how).rows())


def test_tsv_has_no_quoting(tmp_path):
    rows = read(tmp_path / "a.tsv", 'text\tlabel\n"a stray quote\t1\nsecond\t0\n')
    assert [row.text for row in rows] == ['"a stray quote', "second"]


def test_quoted_csv_fields_may_contain_commas_line_ends_and_quotes(tmp_path):
    rows = read(tmp_path / "a.csv", 'text,label\n"a, ""b""\nc",1\n')
    assert rows == [Example(text='a, "b"\nc', label="1")]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_byte_order_mark_and_crlf_are_removed(tmp_path, name):
    forms = {
        "a.tsv": "text\tlabel\r\nx\ty\r\n",
        "a.csv": "text,label\r\nx,y\r\n",
        "a.jsonl": '{"text": "x", "label": "y"}\r\n',
    }
    rows = read(tmp_path / name, b"\xef\xbb\xbf" + forms[name].encode())
    assert rows == [Example(text="x", label="y")]


def test_with_column_numbers_the_first_line_is_a_row(tmp_path):
    assert len(read(tmp_path / "a.txt", "x\t0\ny\t1\n", NUMBERS)) == 2


def test_with_column_numbers_a_declared_header_is_skipped(tmp_path):
    rows = read(
        tmp_path / "a.tsv",
        "q\tid\tone\ttwo\n1\t7\ta\tb\n",
        Reading(text=2, text_pair=3, label=0),
        header=True,
    )
    assert rows == [Example(text="a", text_pair="b", label="1")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\nok\t1\nbroken\n", r"a\.tsv:3: expected 2 columns.*found 1"),
        ("a.tsv", "text\tlabel\nx\t \n", r"a\.tsv:2: the label is empty"),
        (
            "a.tsv",
            "body\tlabel\nx\t1\n",
            r"a\.tsv:1: no column 'text' \(the default name\); found body, label",
        ),
        ("a.csv", 'text,label\n"open,1\n', r"a\.csv:2: not CSV"),
        ("a.jsonl", '{"text": "x", "label": "1"}\n{"text"\n', r"a\.jsonl:2: not JSON"),
        (
            "a.jsonl",
            '{"label": "1"}\n',
            r"a\.jsonl:1: expected a value at 'text' \(the default name\), found nothing",
        ),
        (
            "a.jsonl",
            "[1]\n",
            r"a\.jsonl:1: expected a value at .text. .the default name., found nothing",
        ),
        ("a.tsv", "", "is empty"),
        ("a.xml", "", "no file format is known for the suffix"),
        ("a.tsv", b"text\tlabel\n\xff\xfe\t1\n", r"a\.tsv:2: not UTF-8"),
        (
            "a.jsonl",
            '{"text": "\\ud800", "label": "1"}\n',
            r"a\.jsonl:1: a text is not valid Unicode",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, content)


def test_a_column_number_out_of_range_is_reported(tmp_path):
    with pytest.raises(DataError, match="no column 5; found 2 columns"):
        read(tmp_path / "a.tsv", "x\ty\n", Reading(text=5, label=1))


def test_blank_lines_are_skipped_except_inside_quotes(tmp_path):
    rows = read(tmp_path / "a.csv", 'text,label\n\n"one\n\ntwo",1\n\nthree,0\n')
    assert [row.text for row in rows] == ["one\n\ntwo", "three"]
    assert len(read(tmp_path / "a.tsv", "x\t1\n\ny\t0\n", NUMBERS)) == 2


def test_line_numbers_count_blank_lines(tmp_path):
    with pytest.raises(DataError, match=r"a\.tsv:4: expected 2 columns"):
        read(tmp_path / "a.tsv", "text\tlabel\n\nx\t1\nbroken\n")


def test_an_unlabelled_source_still_skips_the_header(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\ttopic\nx\t1\n")
    source = Source(path=path, reading=Reading(text=0, label="topic"))
    assert list(source.unlabelled().rows()) == [Example(text="x")]


def test_a_tab_separates_the_texts_of_a_pair():
    assert split_pair("a\tb") == Example(text="a", text_pair="b")
    assert split_pair("a b") == Example(text="a b")


def test_columns_are_parsed_from_an_option():
    assert parse_columns("text=3, text_pair=second") == {"text": 3, "text_pair": "second"}
    assert parse_columns("label=y", ("text", "label")) == {"label": "y"}
    with pytest.raises(DataError, match="expected text=COLUMN or text_pair=COLUMN"):
        parse_columns("label=3")
    with pytest.raises(DataError, match="text is given twice"):
        parse_columns("text=0,text_pair=1,text=2")


ENTITIES = Reading(entities="entities")
MULTI, NUMBER = {"kind": "multi_label"}, {"kind": "regression"}


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_cell_holds_zero_or_more_labels(tmp_path, name):
    tab = "\t" if name == "a.tsv" else ","
    text = f"text{tab}label\na{tab}x | y|x\nb{tab}\n"
    rows = read(tmp_path / name, text, separator="|", **MULTI)
    assert [row.label for row in rows] == [("x", "y"), ()]


def test_labels_of_a_multi_label_row_are_a_list_in_jsonl(tmp_path):
    lines = ['{"text": "a", "label": ["x, y", 3]}', '{"text": "b", "label": []}']
    rows = read(tmp_path / "a.jsonl", "\n".join(lines), **MULTI)
    assert [row.label for row in rows] == [("x, y", "3"), ()]


@pytest.mark.parametrize("label", ["1", " 2.50 ", "-3e-2", ".5", "0"])
def test_a_regression_target_is_stored_as_written(tmp_path, label):
    for name, text in (
        ("a.tsv", f"text\tlabel\na\t{label}\n"),
        ("a.csv", f"text,label\na,{label}\n"),
        ("a.jsonl", f'{{"text": "a", "label": "{label}"}}'),
    ):
        assert read(tmp_path / name, text, **NUMBER)[0].label == label.strip()


def test_a_jsonl_label_may_be_a_float_only_in_a_regression(tmp_path):
    text = '{"text": "a", "label": 4.25}'
    assert read(tmp_path / "a.jsonl", text, **NUMBER)[0].label == "4.25"
    with pytest.raises(DataError, match=r"a\.jsonl:1: expected a label, found float"):
        read(tmp_path / "a.jsonl", text)


def test_jsonl_spans_are_the_entities_e1_and_e2(tmp_path):
    text = '{"text": "tea in a cup", "label": "x", "entities": [[9, 12], [0, 4]]}'
    (row,) = read(tmp_path / "a.jsonl", text, ENTITIES)
    assert row.entities == ((9, 12), (0, 3))


def test_entity_tags_are_removed_from_marked_texts_and_semeval_records(tmp_path):
    rows = read(
        tmp_path / "a.tsv",
        "x\t<e2>tea</e2> in <e1> cup </e1>\n",
        Reading(text=1, label=0),
        marked=True,
    )
    assert rows == [Example(text="tea in  cup ", entities=((8, 11), (0, 3)), label="x")]
    record = '1\t"<e1>a</e1> <e2>b</e2>"\nOther\nComment:\n\n'
    rows = read(tmp_path / "a.TXT", record, format=Format.SEMEVAL)
    assert rows == [Example(text="a b", entities=((0, 1), (2, 3)), label="Other")]


@pytest.mark.parametrize(
    ("name", "content", "how", "message"),
    [
        (
            "a.tsv",
            "text\tlabel\na\tx,y\n",
            MULTI,
            r"a\.tsv:2: expected a list of labels, found a string",
        ),
        (
            "a.tsv",
            "text\tlabel\na\tx,,y\n",
            {**MULTI, "separator": ","},
            r"a\.tsv:2: the label is empty",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": 3}',
            MULTI,
            r"a\.jsonl:1: expected a list of labels, found int",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": [1.5]}',
            MULTI,
            r"a\.jsonl:1: expected a label, found float",
        ),
        ("a.tsv", "text\tlabel\na\t1\nb\tnan\n", NUMBER, r"a\.tsv:3: expected a number .* 'nan'"),
        ("a.tsv", "text\tlabel\na\tinf\n", NUMBER, r"a\.tsv:2: expected a number"),
        ("a.tsv", "text\tlabel\na\t1e40\n", NUMBER, r"a\.tsv:2: expected a number"),
        ("a.tsv", "text\tlabel\na\tfive\n", NUMBER, r"a\.tsv:2: expected a number"),
        ("a.jsonl", '{"text": "a", "label": NaN}', NUMBER, r"a\.jsonl:1: expected a number"),
        ("a.jsonl", '{"text": "a", "label": true}', NUMBER, r"a\.jsonl:1: expected a number"),
        (
            "a.tsv",
            "text\tlabel\n<e1>a</e1>\tx\n",
            {"marked": True},
            r"a\.tsv:2: expected <e2> once",
        ),
        (
            "a.jsonl",
            '{"text": "a b", "label": "x", "entities": [[0, 1], [2, 4]]}',
            {"columns": ENTITIES},
            r"a\.jsonl:1: entity e2 is \[2, 4\], in a text of 3",
        ),
        (
            "a.jsonl",
            '{"text": "a b", "label": "x", "entities": [[0, 1], [2.0, 3]]}',
            {"columns": ENTITIES},
            r"a\.jsonl:1: expected .*start, end\]\] at 'entities', found \[\[0, 1\], \[2\.0, 3\]\]",
        ),
        (
            "a.tsv",
            "text\tlabel\tentities\na b\tx\t[[0, 1], [2, 3]]\n",
            {"columns": ENTITIES},
            r"a\.tsv:2: expected \[\[start, end\], \[start, end\]\]",
        ),
    ],
)
def test_an_invalid_label_or_entity_is_reported_with_its_line(
    tmp_path, name, content, how, message
):
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, content, **how)


def part(path, *, held_out, rows=30, seed=0, stratified=False):
    chosen = Part(rows=rows, seed=seed, held_out=held_out, stratified=stratified)
    return [row.text for row in Source(path=path, reading=NUMBERS, part=chosen).rows()]


def test_held_out_rows_do_not_depend_on_the_order_of_the_file(tmp_path):
    lines = [f"text {n}\t{n % 2}" for n in range(100)]
    path, turned = tmp_path / "a.tsv", tmp_path / "b.tsv"
    path.write_text("\n".join(lines))
    turned.write_text("\n".join(reversed(lines)))
    held, rest = part(path, held_out=True), part(path, held_out=False)
    assert len(held) == 30
    assert sorted(held + rest) == sorted(line.split("\t")[0] for line in lines)
    assert part(turned, held_out=True) == held[::-1]
    assert part(path, held_out=True, seed=1) != held


@pytest.mark.parametrize("stratified", [False, True])
def test_copies_of_a_text_are_in_the_same_part(tmp_path, stratified):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"text {n // 4}\t{n % 2}\n" for n in range(100)))
    held, rest = (part(path, held_out=held, stratified=stratified) for held in (True, False))
    assert set(held) & set(rest) == set()
    assert 30 <= len(held) < 34


def test_holding_out_the_whole_file_is_rejected(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("x\t1\ny\t0\n")
    with pytest.raises(DataError, match="holds 2 rows: cannot hold out 2"):
        part(path, held_out=True, rows=2)


def test_a_limit_takes_the_same_rows_in_any_order_of_the_file(tmp_path):
    path, turned = tmp_path / "a.tsv", tmp_path / "b.tsv"
    lines = [f"text {n // 2}\t{n % 2}" for n in range(100)]
    path.write_text("\n".join(lines))
    turned.write_text("\n".join(reversed(lines)))
    few, turned_few = (
        [row.text for row in Source(path=p, reading=NUMBERS, part=Part(limit=25)).rows()]
        for p in (path, turned)
    )
    assert len(few) == len(turned_few) == 25
    assert set(few) == set(turned_few)
    assert few != [line.split("\t")[0] for line in lines[:25]]
    both = Part(rows=30, seed=1, limit=10)
    rest = [row.text for row in Source(path=path, reading=NUMBERS, part=both).rows()]
    assert len(rest) == 10
    assert set(rest).isdisjoint(part(path, held_out=True, seed=1))
    assert len(list(Source(path=path, reading=NUMBERS, part=Part(limit=500)).rows())) == 100


def test_rows_of_excluded_splits_are_left_out(tmp_path):
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("Rain  and wind\t1\nsun\t0\nrain\t1\n")
    dev.write_text("rain and WIND\t0\n")
    excluded = (Source(path=dev, reading=NUMBERS),)
    chosen = Source(path=train, reading=NUMBERS, part=Part(without=("dev",)), excluded=excluded)
    assert [row.text for row in chosen.rows()] == ["sun", "rain"]
    assert [row.text for row in chosen.unlabelled().rows()] == ["sun", "rain"]
    assert len(list(chosen.whole().rows())) == 3


def test_real_files_have_the_documented_number_of_rows(shared_data):
    headlines = Source(path=shared_data / "thucnews_headlines" / "train_45000.txt", reading=NUMBERS)
    assert sum(1 for _ in headlines.rows()) == 45_000
    pairs = Reading(text=3, text_pair=4, label=0, format="tsv", header=True)
    for name, count in (("train.tsv", 3668), ("dev.tsv", 408), ("msr_paraphrase_test.txt", 1725)):
        source = Source(path=shared_data / "mrpc" / name, reading=pairs)
        rows = list(source.rows())
        assert len(rows) == count
        assert {row.label for row in rows} == {"0", "1"}


def test_the_official_semeval_files_and_the_tsv_files_give_the_same_examples(shared_data):
    folder = shared_data / "semeval2010_task8"
    for official, tsv, count in (
        ("TRAIN_FILE.TXT", "rbert_train.tsv", 8000),
        ("TEST_FILE_FULL.TXT", "rbert_test.tsv", 2717),
    ):
        records = Source(path=folder / official, reading=Reading(format="semeval"))
        marked = Source(path=folder / tsv, reading=Reading(text=1, label=0, marked=True))
        first, second = list(records.rows()), list(marked.rows())
        assert len(first) == len(second) == count
        assert [row.label for row in first] == [row.label for row in second]
        same = sum(
            entity_texts(row) == entity_texts(other)
            for row, other in zip(first, second, strict=True)
        )
        assert same >= 0.99 * count


def entity_texts(row):
    return [row.text[start:end] for start, end in row.entities]


def test_the_labels_of_stsb_are_numbers(shared_data):
    pairs = Reading(text="sentence1", text_pair="sentence2", label="score", kind="regression")
    path = shared_data / "stsb" / "glue_dev.tsv"
    scores = [float(row.label) for row in Source(path=path, reading=pairs).rows()]
    assert (len(scores), min(scores), max(scores)) == (1500, 0, 5)
