"""HTML pages: the order of their elements, and Chromium without a driver."""

import shutil
import subprocess
from html.parser import HTMLParser

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is absent: apt-get install chromium"
)


class TagChecker(HTMLParser):
    """Checks that elements are closed in the correct order."""

    VOID = ("meta", "link", "br", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.text, self.names = [], [], set()

    def handle_starttag(self, tag, _):
        self.names.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, _):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parse(html):
    parsed = TagChecker()
    parsed.feed(html)
    assert parsed.open == []
    return parsed


def browse(path, folder, *flags):
    """Open a page in Chromium, whose profile is stored in the folder."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={folder / 'profile'}", *flags, f"file://{path}"]
    return subprocess.run(command, check=True, capture_output=True, timeout=300)
