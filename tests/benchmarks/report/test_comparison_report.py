"""Comparisons are shown with intervals and notes, and a browser renders the pages."""

import re

import pytest

from pipework.benchmarks.report.comparison_report import conclusion
from pipework.benchmarks.report.output import check, page, print_result, write_page
from pipework.benchmarks.results_schema.comparison import Quantity, Ratio, RatioVerdict
from pipework.errors import CheckFailedError

TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
HOSTILE = "\"'><script>document.title='run'</script>&$a$"


@pytest.fixture
def comparison(comparison):
    """A comparison with better texts/s and worse p99 at every level."""
    ratios = {
        Quantity.TEXTS_PER_S: (1.2, 1.1, 1.3, RatioVerdict.FASTER),
        Quantity.P50: (1.0, 0.9, 1.1, RatioVerdict.NO_DIFFERENCE),
        Quantity.P99: (1.5, 1.2, 1.9, RatioVerdict.SLOWER),
    }

    def with_verdict(ratio: Ratio) -> Ratio:
        names = ("ratio", "low", "high", "verdict")
        return ratio.model_copy(update=dict(zip(names, ratios[ratio.quantity], strict=True)))

    levels = tuple(
        level.model_copy(update={"ratios": tuple(map(with_verdict, level.ratios))})
        for level in comparison.levels
    )
    return comparison.model_copy(update={"levels": levels})


def test_the_terminal_shows_all_ratios(comparison, printed):
    text = printed(print_result, comparison)
    for words in ("1.200", "1.100 to 1.300", "faster", "slower", "no difference seen"):
        assert words in text
    assert conclusion(comparison).title in text


def test_costs_are_shown_without_verdict(comparison, printed):
    first = comparison.levels[0].model_copy(update={"cost_per_million": (2.5, 1.25)})
    with_costs = comparison.model_copy(update={"levels": (first, *comparison.levels[1:])})
    (row,) = (
        line for line in printed(print_result, with_costs).splitlines() if "per million" in line
    )
    assert re.findall(r"[\d.]+", row)[1:] == ["2.50", "1.25", "0.500"]
    assert "per million" in page(with_costs)
    assert conclusion(with_costs) == conclusion(comparison)


def test_the_conclusion_counts_verdicts(comparison):
    note = conclusion(comparison)
    assert note.title == "http://127.0.0.1:8000 after is worse than http://127.0.0.1:8000 before"
    assert note.text == "faster 5, slower 5, no difference seen 5"
    assert note.bad


def test_the_first_regression_is_the_message_and_the_details_have_all(comparison):
    with pytest.raises(
        CheckFailedError, match=r"1 client: p99 1\.50 times the baseline, and 4 more"
    ) as caught:
        check(comparison)
    assert len(caught.value.details.splitlines()) == 5


def test_the_page_marks_verdicts_and_loads_nothing(comparison):
    html = page(comparison)
    assert html.count('<td class="bad">slower</td>') == 5
    assert html.count('<td class="good">faster</td>') == 5
    assert 'class="alarm"' in html
    assert not re.search(r"<(script|link|img|iframe|base)\b|@import|url\((?!#)", html)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("width", [1280, pytest.param(360, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["loaded", "comparison"])
def test_a_browser_renders_the_page_without_scrolling_or_errors(
    request, browser, tmp_path, kind, width, scheme
):
    result, path = request.getfixturevalue(kind), tmp_path / "page.html"
    write_page(path, result)
    faults = []
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    browser_page = context.new_page()
    browser_page.on("console", lambda message: faults.append(message.text))
    browser_page.on("pageerror", lambda error: faults.append(str(error)))
    browser_page.on(
        "request", lambda request_: faults.extend([request_.url] * (request_.url != path.as_uri()))
    )
    browser_page.goto(path.as_uri())
    assert browser_page.evaluate(TOO_WIDE) == 0
    for drawing in browser_page.locator("svg").all():
        assert drawing.bounding_box()["width"] > 200
    ink = browser_page.evaluate("getComputedStyle(document.body).color")
    assert (ink == "rgb(11, 11, 11)") is (scheme == "light")
    context.close()
    assert faults == []


def test_names_are_escaped(comparison, browser, tmp_path):
    path = tmp_path / "page.html"
    hostile = comparison.after.model_copy(update={"target": HOSTILE, "model": HOSTILE})
    level = comparison.levels[0].model_copy(update={"name": HOSTILE})
    write_page(path, comparison.model_copy(update={"after": hostile, "levels": (level,)}))
    context = browser.new_context()
    browser_page = context.new_page()
    browser_page.goto(path.as_uri())
    assert HOSTILE in browser_page.locator("h1").inner_text()
    assert browser_page.title() != "run"
    context.close()
