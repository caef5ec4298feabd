import pytest

from tests.train.data_report.reports import report_of, sources


@pytest.mark.parametrize(
    ("damaged", "finding"),
    [
        ("Tom &amp; Jerry", "1 row with HTML entities, such as &amp;: decode them"),
        ("5 &#8364; a day", "1 row with HTML entities"),
        ("a caf\u00c3\u00a9 in town", "1 row with UTF-8 that was decoded as Windows-1252"),
        ("it\u00e2\u20ac\u2122s late", "1 row with UTF-8 that was decoded as Windows-1252"),
        ("5 \x80 a day", "1 row with control characters"),
        ('he said ""no"" twice', "1 row with doubled quotes"),
        ("text", "1 row that repeats the header: remove such rows"),
    ],
)
def test_damaged_texts_are_reported(damaged, finding, tmp_path):
    plain = ["R&D & more", "S\u00c3O \u00abPaulo\u00bb", 'a "quoted" word', "caf\u00e9", "label"]
    rows = [(text, "ab"[number % 2]) for number, text in enumerate(plain)]
    damages = ("HTML", "Windows", "control", "doubled", "header")
    assert not any(
        word in found
        for found in report_of(sources(tmp_path, train=rows)).findings
        for word in damages
    )
    label = "label" if damaged == "text" else "a"
    (found,) = (
        found
        for found in report_of(sources(tmp_path, train=[*rows, (damaged, label)])).findings
        if any(word in found for word in damages)
    )
    assert found.startswith(f"train: {finding}")
