import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

FILE = Path(__file__).parents[3] / "serve" / "dashboard" / "pipework.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
LABEL_LISTS = re.compile(r"\b(?:by|on|ignoring|without)\s*\([^)]*\)")
MATCHERS = re.compile(r"\{[^}]*\}")
FUNCTIONS = {"sum", "rate", "histogram_quantile", "max", "min", "increase", "count", "time"} | {
    "clamp_min",
    "vector",
    "or",
}


def expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]


def metrics_of(expression: str) -> set[str]:
    bare = re.sub(r"\[[^\]]*\]", "", MATCHERS.sub("", LABEL_LISTS.sub("", expression)))
    return set(re.findall(r"[a-zA-Z_]\w*", re.sub(r"\b\d[\de.-]*\b", "", bare))) - FUNCTIONS


def labels_of(expression: str) -> set[str]:
    lists = " ".join(LABEL_LISTS.findall(expression)).replace("by", "")
    matched = re.findall(r"(\w+)\s*=~?\"", " ".join(MATCHERS.findall(expression)))
    return {*re.findall(r"\w+", lists), *matched}


@pytest.fixture(scope="module")
def exported_text(server) -> str:
    httpx.post(f"{server.url}/v1/predict", json={"texts": ["goal"]})
    return httpx.get(f"{server.url}/metrics").text


def test_every_metric_of_the_dashboard_exists(exported_text: str) -> None:
    exported = {
        re.split(r"[{ ]", line)[0] for line in exported_text.splitlines() if line[:1] != "#"
    }
    used = set().union(*map(metrics_of, expressions()))
    assert len(used) > 15
    assert used - exported == set()


def test_every_label_of_the_dashboard_exists(exported_text: str) -> None:
    exported = set(re.findall(r"[{,](\w+)=\"", exported_text))
    scraped = {"job", "instance"}  # Prometheus adds them
    used = set().union(*map(labels_of, expressions()))
    assert {"model", "stage", "le", "reason", "status"} <= used
    assert used - exported - scraped == set()


def test_every_metric_of_the_server_is_on_the_dashboard(exported_text: str) -> None:
    ours = set(re.findall(r"^# TYPE (pipework_\w+?)(?:_created)? ", exported_text, re.MULTILINE))
    used = " ".join(expressions())
    assert {name for name in ours if name not in used} == set()


def test_panels_neither_overlap_nor_share_an_id() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_data_source_is_a_variable() -> None:
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert "id" not in DASHBOARD
