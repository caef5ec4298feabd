"""The page in Chromium, before a real server of several models."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from pipework.serve.app import build_app
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.page import FILES, HERE
from pipework.serve.models.registry import Models
from pipework.serve.scheduling.predictor import Predictor

HOSTILE = '<img src=x onerror="document.title=1">'
WIDE, NARROW = (1280, 800), (360, 740)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FOCUSED = "document.activeElement.id || document.activeElement.textContent"
expect.set_options(timeout=30_000)
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is absent: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


def serve_models(stack: ExitStack, predictors: list[Predictor], keys: ApiKeys | None = None) -> str:
    """Serve models in a thread, and return the URL."""
    models = stack.enter_context(Models(predictors))
    config = uvicorn.Config(build_app(models, keys=keys), port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    stack.callback(thread.join)
    stack.callback(setattr, server, "should_exit", True)
    until = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def one(run: Path) -> Iterator[str]:
    """A server of one model."""
    with ExitStack() as stack:
        yield serve_models(stack, [Predictor(run)])


@pytest.fixture(scope="module")
def many(
    run: Path,
    pair_run: Path,
    entity_run: Path,
    multi_run: Path,
    regression_run: Path,
    hostile_run: Path,
) -> Iterator[str]:
    """A server of models of every kind, one of them in two versions."""
    named = [
        Predictor(run, name="topics", version="1"),
        Predictor(run, name="topics", version="2"),
        Predictor(pair_run, name="pairs"),
        Predictor(entity_run, name="entities"),
        Predictor(multi_run, name="several"),
        Predictor(regression_run, name="number"),
        Predictor(hostile_run, name=HOSTILE),
    ]
    with ExitStack() as stack:
        yield serve_models(stack, named)


@pytest.fixture(scope="module")
def hostile_run(make_run: Callable[..., Path]) -> Path:
    run = make_run()
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["task"]["labels"] = [HOSTILE, "a" * 200, "b"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens the page of a server: url, size=WIDE, scheme=light."""
    faults: list[str] = []
    contexts = []

    def start(url: str, size: tuple[int, int] = WIDE, **options: Any) -> Page:
        width, height = size
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.extend(outside(request, url)))
        page.goto(url)
        expect(page.locator("#state")).to_have_attribute("data-state", "ready")
        return page

    yield start
    for context in contexts:
        context.close()
    assert faults == []


def outside(request: Request, url: str) -> list[str]:
    return [] if request.url.startswith(f"{url}/") else [f"asked {request.url}"]


def ask(page: Page, text: str, pair: str | None = None) -> None:
    page.locator("#text").fill(text)
    if pair is not None:
        page.locator("#pair").fill(pair)
    page.locator("#text").press("Enter")


def bars(page: Page) -> list[str]:
    expect(page.locator("#answer")).to_be_visible()
    return page.locator("#bars .name").all_inner_texts()


def test_by_keyboard_alone_a_text_is_typed_sent_and_answered(
    one: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(one)
    page.keyboard.type("goal team")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("match")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_have_text(re.compile(r"sport\d\d\.\d %"))
    expect(page.locator("#spoken")).to_have_text(re.compile(r"sport, \d\d\.\d %"))
    assert page.locator("#text").input_value() == "goal team\nmatch"
    assert bars(page)[0] == "✓ sport"
    assert len(bars(page)) == 3
    widths = page.eval_on_selector_all(".fill", "all => all.map(one => one.offsetWidth)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2 * widths[1]
    expect(page.locator("#by")).to_have_text(
        re.compile("Answered by model topics, version [0-9]+, engine onnx")
    )


def test_the_answer_is_that_of_the_api(one: str, open_page: Callable[..., Page]) -> None:
    page = open_page(one)
    ask(page, "rain stock stock")
    answer = httpx.post(f"{one}/v1/predict", json={"texts": ["rain stock stock"]}).json()
    scores = answer["predictions"][0]["scores"]
    expect(page.locator("#bars .score")).to_have_text(
        [f"{score * 100:.1f} %" for score in scores.values()]
    )


def test_the_stages_add_up_to_the_round_trip(one: str, open_page: Callable[..., Page]) -> None:
    page = open_page(one)
    ask(page, "goal")
    expect(page.locator("#legend dt")).to_have_text(
        ["Tokenize", "Queue", "Infer", "Decode", "HTTP", "Round trip"]
    )
    times = [float(one.split()[0]) for one in page.locator("#legend dd").all_inner_texts()]
    assert sum(times[:-1]) == pytest.approx(times[-1], rel=0.05, abs=0.1)
    assert page.locator("#stack div").count() == 5


def test_the_order_of_focus_is_that_of_the_work_and_it_is_seen(
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


def test_every_field_has_a_name_for_those_who_do_not_see_it(
    many: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(many)
    for label in ("Model", "Version", "Text"):
        expect(page.get_by_label(label, exact=True)).to_be_visible()
    page.locator("#model").select_option("pairs")
    for label in ("First text", "Second text"):
        expect(page.get_by_label(label, exact=True)).to_be_visible()
    for image in page.locator("svg[role=img]").all():
        assert image.get_attribute("aria-label")


def test_a_chosen_version_answers(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    for choice, version in (("", "2"), ("1", "1")):
        page.locator("#model").select_option("topics")
        page.locator("#version").select_option(choice)
        ask(page, "goal")
        expect(page.locator("#by")).to_contain_text(f"topics, version {version}")


def test_pairs_are_asked_as_pairs(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    expect(page.locator("#pair")).to_be_hidden()
    page.locator("#model").select_option("pairs")
    ask(page, "goal", "stock")  # only the second counts
    expect(page.locator("#verdict")).to_contain_text("money")


def test_entities_are_marked_with_a_button(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("entities")
    page.locator("#text").fill("goal rain")
    for mark, start, end in (("e2", 5, 9), ("e1", 0, 4)):
        page.evaluate(f"document.getElementById('text').setSelectionRange({start}, {end})")
        page.locator(f"[data-mark={mark}]").click()
    assert page.locator("#text").input_value() == "<e1>goal</e1> <e2>rain</e2>"
    page.locator("#text").press("Control+Enter")
    expect(page.locator("#verdict")).to_contain_text("weather")


def test_several_labels_are_shown_with_their_thresholds(
    many: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(many)
    page.locator("#model").select_option("several")
    ask(page, "rain stock")
    expect(page.locator("#verdict")).to_contain_text("money, weather")
    assert page.locator(".threshold").count() == 3
    said = dict(zip(bars(page), page.locator(".score").all_inner_texts(), strict=True))
    assert said["✓ money"].endswith("≥ 25.0 %")
    assert said["sport"].endswith("< 75.0 %")


def test_a_regression_is_a_number(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("number")
    ask(page, "rain")
    score = httpx.post(f"{many}/v1/predict", json={"texts": ["rain"], "model": "number"}).json()[
        "predictions"
    ][0]["score"]
    expect(page.locator("#verdict")).to_contain_text(f"{score:.4f}")
    expect(page.locator("#bars")).to_be_hidden()


def test_hostile_labels_names_and_texts_are_shown_as_text(
    many: str, open_page: Callable[..., Page]
) -> None:
    page = open_page(many, NARROW)
    page.locator("#model").select_option(HOSTILE)
    ask(page, HOSTILE)
    assert any(HOSTILE in bar for bar in bars(page))
    expect(page.locator("#by")).to_contain_text(HOSTILE)
    expect(page.locator("#models")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
    assert page.title() != "1"
    assert page.evaluate(TOO_WIDE) <= 0


def test_errors_are_said_in_words(many: str, open_page: Callable[..., Page]) -> None:
    page = open_page(many)
    page.locator("#model").select_option("entities")
    ask(page, "no marks")
    expect(page.locator("#error")).to_contain_text("This cannot be answered: ")
    page.locator("#model").select_option("topics")
    ask(page, "a" * 200_000)
    expect(page.locator("#error")).to_contain_text("expected at most 100000 characters")
    ask(page, "goal")
    expect(page.locator("#error")).to_be_hidden()


def test_a_busy_server_says_when_to_come_back(one: str, open_page: Callable[..., Page]) -> None:
    page = open_page(one)
    busy = {"status": 429, "json": {"error": "full"}, "headers": {"Retry-After": "7"}}
    page.route("**/v1/predict", lambda route: route.fulfill(**busy))
    ask(page, "goal")
    expect(page.locator("#error")).to_have_text(re.compile("busy.*Try again in 7 s"))


def test_a_key_is_asked_for_where_one_is_needed_and_stays_in_memory(
    run: Path, browser: Browser
) -> None:
    with ExitStack() as stack:
        url = serve_models(stack, [Predictor(run)], ApiKeys(["open-sesame"]))
        page = browser.new_page()
        stack.callback(page.close)
        page.goto(url)
        expect(page.locator("#state-words")).to_have_text("wants an API key")
        expect(page.locator("#key")).to_be_focused()
        page.locator("#text").fill("goal")
        page.locator("#text").press("Enter")
        expect(page.locator("#error")).to_have_text("This server wants an API key.")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#error")).to_have_text("The server does not know this API key.")
        page.locator("#key").fill("open-sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#verdict")).to_contain_text("sport")
        expect(page.locator("#state")).to_have_attribute("data-state", "ready")
        kept = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        assert "sesame" not in page.evaluate(kept)


def test_enter_of_an_input_method_does_not_send(one: str, open_page: Callable[..., Page]) -> None:
    page = open_page(one)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    composing = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, cancelable: true})"
    assert page.evaluate(f"document.getElementById('text').dispatchEvent({composing})")
    ask(page, "goal")
    expect(page.locator("#answer")).to_be_visible()
    assert len([url for url in sent if url.endswith("/v1/predict")]) == 1


@pytest.mark.parametrize("size", [WIDE, NARROW, (320, 640)])
def test_nothing_is_wider_than_the_window(
    one: str, open_page: Callable[..., Page], size: tuple[int, int]
) -> None:
    page = open_page(one, size)
    ask(page, "goal" * 200)
    expect(page.locator("#answer")).to_be_visible()
    assert page.evaluate(TOO_WIDE) <= 0
    beside = page.evaluate(
        "document.querySelector('.now').getBoundingClientRect().left"
        " >= document.querySelector('.column').getBoundingClientRect().right"
    )
    assert beside == (size == WIDE)


def test_the_charts_move_while_load_runs(slow_run: Path, open_page: Callable[..., Page]) -> None:
    with ExitStack() as stack:
        url = serve_models(stack, [Predictor(slow_run)])
        page = open_page(url)
        expect(page.locator("#throughput output")).to_have_text("0 texts/s, 0 requests/s")
        over = threading.Event()

        def load() -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                while not over.is_set():
                    client.post("/v1/predict", json={"texts": ["goal rain " * 15] * 16})

        with ThreadPoolExecutor(6) as pool:
            for _ in range(6):
                pool.submit(load)
            try:
                moving = re.compile(r"[1-9]\d* texts/s")
                expect(page.locator("#throughput output")).to_have_text(moving, timeout=20_000)
                latency = re.compile(r"p50 \d.* msp99 \d.* ms")
                expect(page.locator("#latency output")).to_have_text(latency)
                waiting = re.compile(r"[1-9]\d* requests?, [1-9][\d,]* tokens wait")
                expect(page.locator("#queue output")).to_have_text(waiting, timeout=20_000)
                assert page.locator("#throughput path.area").get_attribute("d")
            finally:
                over.set()
        text = re.compile(r"[1-9][\d,]* texts answered")
        expect(page.locator("#models")).to_have_text(text)


def test_a_server_that_is_gone_is_said_to_be(run: Path, browser: Browser) -> None:
    with ExitStack() as stack:
        url = serve_models(stack, [Predictor(run)])
        page = browser.new_page()
        stack.callback(page.close)
        page.goto(url)
        expect(page.locator("#state")).to_have_attribute("data-state", "ready")
        page.route("**/v1/**", lambda route: route.abort())
        expect(page.locator("#state-words")).to_have_text("cannot be reached")
        ask(page, "goal")
        expect(page.locator("#error")).to_contain_text("cannot be reached")


def test_who_wants_no_motion_gets_none(one: str, open_page: Callable[..., Page]) -> None:
    page = open_page(one, reduced_motion="reduce")
    ask(page, "goal")
    expect(page.locator("#answer")).to_be_visible()
    moving = "getComputedStyle(document.querySelector('.fill')).transitionDuration"
    assert page.evaluate(moving) in {"0s", ""}


def test_the_policy_forbids_what_the_page_does_not_need(one: str) -> None:
    for path in ("/", *(f"/page/{name}" for name in FILES)):
        answer = httpx.get(f"{one}{path}")
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_files_name_no_other_host() -> None:
    text = "".join((HERE / name).read_text() for name in ("page.html", *FILES))
    hosts = set(re.findall(r"https?://[^\s\"'`;)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert hosts == set()
    assert "innerHTML" not in text


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrasts_are_those_of_wcag_aa(dark: bool) -> None:
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


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
