import math
from html.parser import HTMLParser

import pytest

from pipework.html import page

HOSTILE = "<script>\"&'"


class Checked(HTMLParser):
    """Collects the text and checks that each element is closed."""

    VOID = frozenset({"meta"})

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, _attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    ("html", "times"),
    [
        (page.header(HOSTILE, HOSTILE), 2),
        (page.section(HOSTILE, "<p></p>"), 1),
        (page.tiles([(HOSTILE, HOSTILE, HOSTILE)]), 3),
        (page.plots([(HOSTILE, HOSTILE, "<svg></svg>")]), 2),
        (page.table((HOSTILE,), [page.cells((HOSTILE,))]), 2),
        (page.facts(HOSTILE, {HOSTILE: HOSTILE}), 3),
    ],
)
def test_text_is_escaped_in_each_part(html, times):
    parsed = Checked(html)
    assert parsed.text.count(HOSTILE) == times
    assert "script" not in parsed.tags


def test_a_page_contains_its_parts_unchanged_and_its_style():
    html = page.render_page("a & b", ["<p>{first}</p>", "<p>second</p>"])
    assert html.startswith("<!doctype html>")
    assert "<title>a &amp; b</title>" in html
    assert "<p>{first}</p>\n<p>second</p>" in html
    assert "--series-1" in html  # a variable of page.css, which plots use
    Checked(html)


def test_a_page_loads_nothing():
    html = page.render_page("title", [page.header("a", "b")])
    assert "default-src 'none'" in html
    assert "http" not in html.replace("http-equiv", "")


def test_a_table_has_a_row_for_each_row_and_a_class_if_given():
    rows = [page.cells((f"{row}", "x")) for row in range(3)]
    html = page.table(("number", "value"), rows)
    tags = Checked(html).tags
    assert (tags.count("tr"), tags.count("th"), tags.count("td")) == (4, 2, 6)
    assert "<table>" in html
    assert '<table class="wide">' in page.table(("number",), [], "wide")


def test_a_curve_of_one_point_is_drawn_as_a_circle():
    drawn = page.line_plot({"one": [(5, 0.5)], "two": [(5, 0.5), (10, 1.0)]})
    assert Checked(drawn).tags.count("circle") == 1
    assert '<circle cx="307.0" cy="274.0"' in drawn
    assert drawn.count("<polyline") == 1


def test_the_axes_of_a_curve_have_round_values():
    drawn = page.line_plot({"rate": [(7, 0.0), (61, 0.000963)]})
    values = Checked(drawn.replace("<text", "<text>;</text><text")).text.split(";")
    assert values == ["", "0", "0.0002", "0.0004", "0.0006", "0.0008", "15", "30", "45", "step 61"]
    assert ">10,000<" in page.line_plot({"speed": [(1, 9000), (2, 12000)]})
    assert ">3<" in page.line_plot({"constant": [(1, 3.0), (2, 3.0)]})
    infinite = {"loss": [(1, math.inf), (2, math.nan)]}
    assert page.line_plot(infinite) == ""
    assert "nan" not in page.line_plot({**infinite, "dev": [(1, 3.0), (2, math.nan), (3, 4.0)]})
