"""The page in Chromium, with a real server of several models."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.app import build_app
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.page import FILES, HERE
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.scheduling.predictor import Predictor
from tests.checked_manifest import as_checked
from tests.serve.servers import server_in_thread

HOSTILE = '<img src=x onerror="document.title=1">'
WIDE, NARROW = (1280, 800), (360, 740)
FOCUSED = "document.activeElement.id || document.activeElement.textContent"
expect.set_options(timeout=30_000)
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def serve_models(stack: ExitStack, predictors: list[Predictor], keys: ApiKeys | None = None) -> str:
    """Serve models in a thread and return the URL."""
    models = stack.enter_context(Models(predictors))
    return stack.enter_context(server_in_thread(build_app(models, keys=keys)))


@pytest.fixture(scope="module")
def single(run: Path) -> Iterator[str]:
    """A server with one model."""
    with ExitStack() as stack:
        yield serve_models(stack, [open_predictor(run)])


@pytest.fixture(scope="module")
def many(
    run: Path,
    pair_run: Path,
    entity_run: Path,
    multi_run: Path,
    regression_run: Path,
    hostile_run: Path,
) -> Iterator[str]:
    """A server with models of every kind, one of them in two versions."""
    predictors = [
        open_predictor(run, name="topics", version="1"),
        open_predictor(run, name="topics", version="2"),
        open_predictor(pair_run, name="pairs"),
        open_predictor(entity_run, name="entities"),
        open_predictor(multi_run, name="several"),
        open_predictor(regression_run, name="number"),
        open_predictor(hostile_run, name=HOSTILE),
    ]
    with ExitStack() as stack:
        yield serve_models(stack, predictors)


@pytest.fixture(scope="module")
def hostile_run(make_run: Callable[..., Path]) -> Path:
    run = make_run()
    manifest = read_manifest(run)
    task = manifest.task.model_copy(update={"labels": (HOSTILE, "a" * 200, "b")})
    write_manifest(run, as_checked(manifest.model_copy(update={"task": task})))
    return run


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """The page of all tests that need no context of their own, which takes a new process."""
    return browser.new_page()


@pytest.fixture
def open_page(tab: Page) -> Iterator[Callable[..., Page]]:
    """A function that opens the page of a server, once in a test: url, size=WIDE, media."""
    errors: list[str] = []
    urls: list[str] = []

    def fail(error: object) -> None:
        errors.append(str(error))

    def check(request: Request) -> None:
        errors.extend(external(request, urls[0]))

    def start(url: str, size: tuple[int, int] = WIDE, **media: Any) -> Page:
        urls.append(url)
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.emulate_media(**media)
        tab.on("pageerror", fail)
        tab.on("request", check)
        tab.goto(url)
        expect(tab.locator("#state")).to_have_attribute("data-state", "ready")
        return tab

    yield start
    tab.goto("about:blank")
    tab.unroute_all()
    tab.emulate_media(reduced_motion="null")
    tab.remove_listener("pageerror", fail)
    tab.remove_listener("request", check)
    assert errors == []


def external(request: Request, url: str) -> list[str]:
    return [] if request.url.startswith(f"{url}/") else [f"external request to {request.url}"]


def classify(page: Page, text: str, pair: str | None = None) -> None:
    page.locator("#text").fill(text)
    if pair is not None:
        page.locator("#pair").fill(pair)
    page.locator("#text").press("Enter")


def bars(page: Page) -> list[str]:
    expect(page.locator("#answer")).to_be_visible()
    return page.locator("#bars .name").all_inner_texts()


def test_a_text_can_be_classified_with_the_keyboard(
    single: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(single)
    page.keyboard.type("goal team")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("match")
    page.keyboard.press("Enter")
    expect(page.locator("#prediction")).to_have_text(re.compile(r"sport\d\d\.\d %"))
    expect(page.locator("#spoken")).to_have_text(re.compile(r"sport, \d\d\.\d %"))
    assert page.locator("#text").input_value() == "goal team\nmatch"
    assert bars(page)[0] == "✓ sport"
    assert len(bars(page)) == 3
    widths = page.eval_on_selector_all(".fill", "all => all.map(bar => bar.offsetWidth)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2 * widths[1]
    expect(page.locator("#by")).to_have_text(
        re.compile("Classified by model topics, version [0-9]{8}…, engine onnx")
    )


def test_the_scores_are_those_of_the_api(single: str, open_page: Callable[..., Page]) -> None:
    page = open_page(single)
    classify(page, "rain stock stock")
    answer = httpx.post(f"{single}/v1/predict", json={"texts": ["rain stock stock"]}).json()
    scores = answer["predictions"][0]["scores"]
    expect(page.locator("#bars .score")).to_have_text(
        [f"{score * 100:.1f} %" for score in scores.values()]
    )


def test_a_truncated_text_is_reported(single: str, open_page: Callable[..., Page]) -> None:
    page = open_page(single)
    for text, reported in (("rain " * 40, True), ("rain", False)):
        classify(page, text)
        prediction = page.locator("#prediction")
        expect(prediction).to_contain_text("weather")
        if reported:
            expect(prediction).to_contain_text("only a part was read")
        else:
            expect(prediction).not_to_contain_text("only a part was read")


def test_the_stages_add_up_to_the_round_trip(single: str, open_page: Callable[..., Page]) -> None:
    page = open_page(single)
    classify(page, "goal")
    expect(page.locator("#legend dt")).to_have_text(
        ["Tokenize", "Queue", "Infer", "Decode", "HTTP", "Round trip"]
    )
    times = [float(text.split()[0]) for text in page.locator("#legend dd").all_inner_texts()]
    assert sum(times[:-1]) == pytest.approx(times[-1], rel=0.05, abs=0.1)
    assert page.locator("#stack div").count() == 5


def test_the_focus_order_is_that_of_the_form_and_visible(
    many: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(many)
    page.locator("#model").select_option("topics")
    page.locator("#model").focus()
    order = []
    for _ in range(4):
        order.append(page.evaluate(FOCUSED))
        outline = "getComputedStyle(document.activeElement).outlineWidth"
        assert page.evaluate(outline) == "3px", order[-1]
        page.keyboard.press("Tab")
    assert order == ["model", "version", "text", "send"]


def test_every_field_has_an_accessible_name(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    for label in ("Model", "Version", "Text"):
        expect(page.get_by_label(label, exact=True)).to_be_visible()
    page.locator("#model").select_option("pairs")
    for label in ("First text", "Second text"):
        expect(page.get_by_label(label, exact=True)).to_be_visible()
    for image in page.locator("svg[role=img]").all():
        assert image.get_attribute("aria-label")


def test_the_selected_version_is_used(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    for choice, version in (("", "2"), ("1", "1")):
        page.locator("#model").select_option("topics")
        page.locator("#version").select_option(choice)
        classify(page, "goal")
        expect(page.locator("#by")).to_contain_text(f"topics, version {version}")


def test_a_pair_model_has_two_text_fields(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    expect(page.locator("#pair")).to_be_hidden()
    page.locator("#model").select_option("pairs")
    expect(page.locator("#ask-head")).to_have_text("Classify a pair")
    classify(page, "goal", "stock")  # only the second text determines the label
    expect(page.locator("#prediction")).to_contain_text("money")


def test_entities_are_marked_with_a_button(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("entities")
    page.locator("#text").fill("goal rain")
    for mark, start, end in (("e2", 5, 9), ("e1", 0, 4)):
        page.evaluate(f"document.getElementById('text').setSelectionRange({start}, {end})")
        page.locator(f"[data-mark={mark}]").click()
    assert page.locator("#text").input_value() == "<e1>goal</e1> <e2>rain</e2>"
    page.locator("#text").press("Control+Enter")
    expect(page.locator("#prediction")).to_contain_text("weather")


def test_several_labels_have_thresholds(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("several")
    classify(page, "rain stock")
    expect(page.locator("#prediction")).to_contain_text("money, weather")
    assert page.locator(".threshold").count() == 3
    scores = dict(zip(bars(page), page.locator(".score").all_inner_texts(), strict=True))
    assert scores["✓ money"].endswith("≥ 25.0 %")
    assert scores["sport"].endswith("< 75.0 %")


def test_long_times_are_in_seconds(single: str, open_page: Callable[..., Page]) -> None:
    page = open_page(single)
    module = "async (value) => (await import('/page/page.js')).ms(value)"
    shown = [page.evaluate(module, value) for value in (0.5, 12.34, 999.4, 1234, 45_678)]
    assert shown == ["0.50 ms", "12.3 ms", "999 ms", "1.23 s", "45.7 s"]


def test_a_regression_has_a_number_and_no_bars(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("number")
    expect(page.locator("#ask-head")).to_have_text("Score a text")
    expect(page.locator("#send")).to_have_text("Score")
    classify(page, "rain")
    score = httpx.post(f"{many}/v1/predict", json={"texts": ["rain"], "model": "number"}).json()[
        "predictions"
    ][0]["score"]
    expect(page.locator("#prediction")).to_contain_text(f"{score:.4f}")
    expect(page.locator("#bars")).to_be_hidden()


def test_hostile_labels_names_and_texts_are_shown_as_text(
    many: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(many, NARROW)
    page.locator("#model").select_option(HOSTILE)
    classify(page, HOSTILE)
    assert any(HOSTILE in bar for bar in bars(page))
    expect(page.locator("#by")).to_contain_text(HOSTILE)
    expect(page.locator("#models")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
    assert page.title() != "1"
    assert page.evaluate(TOO_WIDE) <= 0


def test_errors_are_displayed(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("entities")
    classify(page, "no marks")
    expect(page.locator("#error")).to_contain_text("Invalid request: ")
    page.locator("#model").select_option("topics")
    classify(page, "a" * 200_000)
    expect(page.locator("#error")).to_contain_text("expected at most 100000 characters")
    classify(page, "goal")
    expect(page.locator("#error")).to_be_hidden()


def test_a_full_queue_is_displayed_with_the_retry_time(
    single: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(single)
    busy = {"status": 429, "json": {"error": "full"}, "headers": {"Retry-After": "7"}}
    page.route("**/v1/predict", lambda route: route.fulfill(**busy))
    classify(page, "goal")
    expect(page.locator("#error")).to_have_text(re.compile("busy.*Try again in 7 s"))


def test_the_key_field_appears_if_required_and_the_key_stays_in_memory(
    run: Path, browser: Browser
) -> None:
    with ExitStack() as stack:
        url = serve_models(stack, [open_predictor(run)], ApiKeys(["open-sesame"]))
        page = browser.new_page()
        stack.callback(page.close)
        page.goto(url)
        expect(page.locator("#state-words")).to_have_text("requires an API key")
        expect(page.locator("#key")).to_be_focused()
        page.locator("#text").fill("goal")
        page.locator("#text").press("Enter")
        expect(page.locator("#error")).to_have_text("This server requires an API key.")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#error")).to_have_text("This API key is not valid.")
        page.locator("#key").fill("open-sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#prediction")).to_contain_text("sport")
        expect(page.locator("#state")).to_have_attribute("data-state", "ready")
        stored = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        assert "sesame" not in page.evaluate(stored)


def test_enter_in_an_input_method_does_not_send(
    single: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(single)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    composing = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, cancelable: true})"
    assert page.evaluate(f"document.getElementById('text').dispatchEvent({composing})")
    classify(page, "goal")
    expect(page.locator("#answer")).to_be_visible()
    assert len([url for url in sent if url.endswith("/v1/predict")]) == 1


@pytest.mark.parametrize("size", [WIDE, NARROW, (320, 640)])
def test_nothing_is_wider_than_the_window(
    single: str, open_page: Callable[..., Page], size: tuple[int, int]
) -> None:
    page = open_page(single, size)
    classify(page, "goal" * 200)
    expect(page.locator("#answer")).to_be_visible()
    assert page.evaluate(TOO_WIDE) <= 0
    side_by_side = page.evaluate(
        "document.querySelector('.now').getBoundingClientRect().left"
        " >= document.querySelector('.column').getBoundingClientRect().right"
    )
    assert side_by_side == (size == WIDE)


def test_the_charts_show_the_load(slow_run: Path, open_page: Callable[..., Page]) -> None:
    with ExitStack() as stack:
        url = serve_models(stack, [open_predictor(slow_run)])
        page = open_page(url)
        expect(page.locator("#throughput output")).to_have_text("0 texts/s, 0 requests/s")
        finished = threading.Event()

        def load() -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                while not finished.is_set():
                    client.post("/v1/predict", json={"texts": ["goal rain " * 15] * 16})

        with ThreadPoolExecutor(6) as pool:
            for _ in range(6):
                pool.submit(load)
            try:
                moving = re.compile(r"[1-9]\d* texts/s")
                expect(page.locator("#throughput output")).to_have_text(moving, timeout=20_000)
                latency = re.compile(r"p50 \d.* msp99 \d.* ms")
                expect(page.locator("#latency output")).to_have_text(latency)
                waiting = re.compile(r"[1-9]\d* requests?, [1-9][\d,]* tokens")
                expect(page.locator("#queue output")).to_have_text(waiting, timeout=20_000)
                assert page.locator("#throughput path.area").get_attribute("d")
            finally:
                finished.set()
        text = re.compile(r"[1-9][\d,]* texts classified")
        expect(page.locator("#models")).to_have_text(text)


def test_an_unreachable_server_is_displayed(run: Path, browser: Browser) -> None:
    with ExitStack() as stack:
        url = serve_models(stack, [open_predictor(run)])
        page = browser.new_page()
        stack.callback(page.close)
        page.goto(url)
        expect(page.locator("#state")).to_have_attribute("data-state", "ready")
        page.route("**/v1/**", lambda route: route.abort())
        expect(page.locator("#state-words")).to_have_text("unreachable")
        classify(page, "goal")
        expect(page.locator("#error")).to_contain_text("cannot be reached")


def test_reduced_motion_disables_transitions(single: str, open_page: Callable[..., Page]) -> None:
    page = open_page(single, reduced_motion="reduce")
    classify(page, "goal")
    expect(page.locator("#answer")).to_be_visible()
    moving = "getComputedStyle(document.querySelector('.fill')).transitionDuration"
    assert page.evaluate(moving) in {"0s", ""}


def test_the_content_security_policy_is_strict(single: str) -> None:
    for path in ("/", *(f"/page/{name}" for name in FILES)):
        answer = httpx.get(f"{single}{path}")
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_files_refer_to_no_other_host() -> None:
    text = "".join((HERE / name).read_text() for name in ("page.html", *FILES))
    hosts = set(re.findall(r"https?://[^\s\"'`;)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert hosts == set()
    assert "innerHTML" not in text


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrasts_meet_wcag_aa(dark: bool) -> None:
    light, _, rest = (
        (HERE / "page.css").read_text().partition("@media (prefers-color-scheme: dark)")
    )
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light))
    if dark:
        colours |= dict(re.findall(r"--([\w-]+): (#\w{6})", rest.partition("* {")[0]))
    for ink, ground in (
        *(("ink", "card"), ("quiet", "card"), ("quiet", "ground"), ("ink", "ground")),
        *(("accent", "card"), ("accent", "ground"), ("on-accent", "accent"), ("bad", "bad-ground")),
    ):
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for shape, ground in (
        ("edge", "card"),
        ("accent", "track"),
        ("wait", "card"),
        ("infer", "card"),
    ):
        assert contrast(colours[shape], colours[ground]) >= 3, (shape, ground)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, 1 to 21: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
