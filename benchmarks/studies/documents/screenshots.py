"""Take the screenshots of the documents.

`python -m pipework.benchmarks.studies.documents.screenshots RUN --out DIR`

Writes `training-report.png`, the report of the run, and `serving-page.png`, the page that
`pipe serve` shows after a request. Needs Debian's chromium and the `dev` extra.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.script import report_errors
from pipework.client import Client
from pipework.errors import ConfigError, MissingDependencyError
from pipework.train.report.curves import PAGE

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZE = {"width": 1200, "height": 900}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
TEXT = "The match went to extra time"
REQUESTS, TEXTS = 300, 8
REFRESH_MS = 2500  # the page shows the load of the server every second


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Write both screenshots; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.documents.screenshots", description=__doc__
    )
    parser.add_argument("run", type=Path, help="a run folder with a report and a proven engine")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the images")
    options = parser.parse_args(arguments)
    report = options.run / PAGE
    if not report.is_file():
        message = f"{report} does not exist"
        raise ConfigError(message, "train the run first: pipe train sample --out RUN")
    options.out.mkdir(parents=True, exist_ok=True)
    with open_page() as page:
        page.goto(report.absolute().as_uri())
        page.screenshot(path=options.out / "training-report.png")
        with running_server(options.run) as server:
            page.goto(server.url)
            with Client(server.url) as client:  # for the charts
                for _ in range(REQUESTS):
                    client.predict([TEXT] * TEXTS)
            page.fill("#text", TEXT)
            page.click("#send")
            page.wait_for_selector("#prediction:visible")
            page.wait_for_timeout(REFRESH_MS)
            page.screenshot(path=options.out / "serving-page.png")
    return 0


@contextmanager
def open_page() -> Iterator["Page"]:
    """Open an empty page in a headless Chromium.

    Raises:
        MissingDependencyError: chromium is not installed.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (development only)

    chromium = shutil.which("chromium")
    if chromium is None:
        message = "chromium was not found on PATH"
        raise MissingDependencyError(message, "install it: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        finally:
            browser.close()


if __name__ == "__main__":
    sys.exit(main())
