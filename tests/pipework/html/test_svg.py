import re
from xml.etree import ElementTree as ET

import pytest
from matplotlib import rc_context

from pipework.html.page import render_page
from pipework.html.svg import GRID, INK, SERIES, STYLE, VARIABLES, new_axes, number, svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(description="a line"):
    with rc_context(STYLE):
        figure, axes = new_axes()
        for index, colour in enumerate(SERIES):
            axes.plot((0, 1, 2), (0, 1000, 2500 + index), color=colour)
        axes.set_xlabel("cost in $ or $")
        return svg(figure, description)


def test_colours_are_variables_of_the_page():
    text = drawn()
    used = (INK, GRID, *SERIES)
    assert not [colour for colour in used if colour in text]
    assert all(f"var({VARIABLES[colour]})" in text for colour in used)
    page = render_page("title", [text])
    assert all(f"{VARIABLES[colour]}:" in page for colour in used)


def test_a_plot_has_a_description_and_the_width_of_its_place():
    text = drawn("texts per second")
    assert text.startswith('<svg role="img" aria-label="texts per second"')
    root = ET.fromstring(text)
    assert "viewBox" in root.attrib
    assert {"width", "height"}.isdisjoint(root.attrib)


def test_text_stays_text_and_a_dollar_sign_is_no_formula():
    texts = ["".join(node.itertext()).strip() for node in ET.fromstring(drawn()).iter(f"{SVG}text")]
    assert "cost in $ or $" in texts
    assert [text for text in texts if re.fullmatch(r"\d,\d{3}", text)]


def test_the_same_plot_is_the_same_text_and_ids_differ_between_plots():
    assert drawn() == drawn()
    first, second = (
        {node.get("id") for node in ET.fromstring(drawn(text)).iter(f"{SVG}clipPath")}
        for text in ("one", "two")
    )
    assert first
    assert first.isdisjoint(second)


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (0.25, "0.25"), (0.1 + 0.2, "0.3"), (3.0, "3")]
)
def test_a_tick_is_short_and_has_thousands_separators(value, text):
    assert number(value, 0) == text
