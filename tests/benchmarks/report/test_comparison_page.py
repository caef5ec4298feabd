"""The comparison is shown with its intervals and what spoils it; a browser shows the pages."""

import re
import shutil

import pytest
from playwright.sync_api import sync_playwright

from pipework.benchmarks.compare.compare import compare
from pipework.benchmarks.report.bench_page import write_page as write_bench
from pipework.benchmarks.report.comparison_page import conclusion, page, terminal, write_page
from pipework.benchmarks.results_schema.comparison import Quantity, Ratio, Verdict

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
EVIL = "\"'><script>document.title='run'</script>&$a$"


@pytest.fixture
def comparison(served):
    """Texts/s got better and p99 worse at every level."""
    found = compare(served, served)
    ratios = {
        Quantity.TEXTS_PER_S: (1.2, 1.1, 1.3, Verdict.FASTER),
        Quantity.P50: (1.0, 0.9, 1.1, Verdict.NO_DIFFERENCE),
        Quantity.P99: (1.5, 1.2, 1.9, Verdict.SLOWER),
    }

    def judged(one: Ratio) -> Ratio:
        names = ("ratio", "low", "high", "verdict")
        return one.model_copy(update=dict(zip(names, ratios[one.quantity], strict=True)))

    levels = tuple(
        level.model_copy(update={"ratios": tuple(map(judged, level.ratios))})
        for level in found.levels
    )
    words = ("other machine: cpu A, now B",)
    update = {"levels": levels, "differences": words, "unmatched": ("32 clients, only before",)}
    return found.model_copy(update=update)


def test_the_terminal_shows_every_ratio_and_what_differs(comparison):
    text = terminal(comparison)
    for words in ("1.200", "1.100 to 1.300", "faster", "slower", "no difference seen"):
        assert words in text
    assert "Not the same: other machine: cpu A, now B." in text
    assert "Not compared: 32 clients, only before." in text
    assert max(map(len, text.splitlines())) <= 110


def test_costs_are_shown_and_not_judged(comparison):
    first = comparison.levels[0].model_copy(update={"cost_per_million": (2.5, 1.25)})
    found = comparison.model_copy(update={"levels": (first, *comparison.levels[1:])})
    (row,) = (line for line in terminal(found).splitlines() if "per million" in line)
    assert re.findall(r"[\d.]+", row)[1:] == ["2.50", "1.25", "0.500"]
    assert "per million" in page(found)
    assert conclusion(found) == conclusion(comparison)


def test_the_conclusion_counts_verdicts(comparison):
    said = conclusion(comparison)
    assert said.startswith("http://127.0.0.1:8000 after is worse than http://127.0.0.1:8000 before")
    assert said.endswith("faster 5, slower 5, no difference seen 5")


def test_the_page_draws_each_quantity_and_loads_nothing(comparison):
    html = page(comparison)
    assert html.count("<svg") == 3
    assert html.count('<td class="bad">slower</td>') == 5
    assert html.count('<td class="good">faster</td>') == 5
    assert 'class="verdict worse"' in html
    assert not re.search(r"<(script|link|img|iframe|base)\b|@import|url\((?!#)", html)


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is absent: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("kind", ["loaded", "comparison"])
def test_a_browser_shows_the_page_whole(request, browser, tmp_path, kind, width, scheme):
    result, path = request.getfixturevalue(kind), tmp_path / "page.html"
    (write_bench if kind == "loaded" else write_page)(path, result)
    faults = []
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    shown = context.new_page()
    shown.on("console", lambda message: faults.append(message.text))
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("request", lambda asked: faults.extend([asked.url] * (asked.url != path.as_uri())))
    shown.goto(path.as_uri())
    assert shown.evaluate(TOO_WIDE) == 0
    for drawing in shown.locator("svg").all():
        assert drawing.bounding_box()["width"] > 200
    ink = shown.evaluate("getComputedStyle(document.body).color")
    assert (ink == "rgb(11, 11, 11)") is (scheme == "light")
    context.close()
    assert faults == []


def test_names_from_outside_are_text(comparison, browser, tmp_path):
    path = tmp_path / "page.html"
    evil = comparison.after.model_copy(update={"target": EVIL, "model": EVIL})
    level = comparison.levels[0].model_copy(update={"name": EVIL})
    write_page(path, comparison.model_copy(update={"after": evil, "levels": (level,)}))
    context = browser.new_context()
    shown = context.new_page()
    shown.goto(path.as_uri())
    assert EVIL in shown.locator("h1").inner_text()
    assert shown.title() != "run"
    context.close()
