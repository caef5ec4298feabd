"""The page is self-contained and complete."""

import re
import sys
from functools import cache

import pytest

import pipework.benchmarks.report
from pipework.benchmarks.report.output import page, print_result, write_page
from pipework.benchmarks.report.tables import rate
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.errors import ConfigError, MissingDependencyError, as_pipe_error
from tests.html_pages import parse

NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
HOSTILE = "\"'><script>alert('x')</script>&$a$"


@cache
def _drawn(content):
    return page(BenchResult.model_validate_json(content))


def drawn(result):
    """Return the page of a result; a plot takes a tenth of a second."""
    return _drawn(result.model_dump_json())


@pytest.mark.parametrize("kind", ["served", "offline"])
def test_the_page_loads_nothing(kind, request):
    result = request.getfixturevalue(kind)
    html = drawn(result)
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", html))
    assert addresses <= {*NAMESPACES, result.target}
    assert not re.search(r"<(script|link|img|iframe|base)\b|@import|url\((?!#)", html)
    assert not re.search(r"href=\"(?!#)", html)
    assert "default-src 'none'" in html


def test_the_page_shows_all_figures_and_the_provenance(served):
    text = " ".join(parse(drawn(served)).text)
    for level in served.levels:
        assert rate(level.texts_per_s) in text
    for words in ("headlines", "AMD EPYC", "2 usable", "1.31.1", "2026-11-20 09:30 UTC"):
        assert words in text
    assert "synthetic, log-normal, mean 20 words" in text
    assert "pipe bench http://127.0.0.1:8000 --batch 8" in text
    assert served.provenance.git_commit in text


def test_the_page_has_all_plots(served, offline):
    assert drawn(served).count("<svg") == 2
    assert drawn(offline).count("<svg") == 0


def test_open_loop_levels_have_their_own_plots(loaded):
    html = drawn(loaded)
    for title in ("Latency against load", "Throughput against load"):
        assert f"<h3>{title}</h3>" in html
    assert html.count("<svg") == 4
    assert "p99 limit" in html
    assert 'class="verdict better"><b>SLO met, p99 &lt;= 50 ms:' in html
    only = page(loaded.model_copy(update={"levels": loaded.levels[3:], "slo": None}))
    assert "concurrent clients" not in only


def test_only_errors_are_highlighted(served):
    html = drawn(served)
    assert "23 of " in html
    assert 'class="alarm"' in html
    assert '<td class="bad">HTTP 429: 21, connection dropped: 2</td>' in html
    assert html.count('<td class="bad">') == 1
    calm = page(served.model_copy(update={"levels": served.levels[:4]}))
    assert 'class="alarm"' not in calm
    assert '<td class="bad">' not in calm


def test_a_level_without_successes_is_shown(served, printed):
    nothing = {"latency_ms": None, "texts_per_s": 0, "requests": 0}
    failed = served.levels[0].model_copy(update={**nothing, "errors": {"HTTP 500": 9}})
    only = served.model_copy(update={"levels": (failed,)})
    assert "HTTP 500: 9" in printed(print_result, only)
    assert page(only).count("<svg") == 1
    mixed = served.model_copy(update={"levels": (failed, *served.levels[1:])})
    assert page(mixed).count("<svg") == 2


def test_names_are_escaped(served, offline):
    errors = served.levels[0].model_copy(update={"errors": {HOSTILE: 1}})
    workload = served.workload.model_copy(update={"source": HOSTILE})
    hostile = {"model": HOSTILE, "target": HOSTILE, "command": (HOSTILE,), "workload": workload}
    stage = offline.offline[0].model_copy(update={"stage": HOSTILE})
    for result in (
        served.model_copy(update={**hostile, "levels": (errors, *served.levels)}),
        offline.model_copy(update={**hostile, "offline": (*offline.offline, stage)}),
    ):
        html = page(result)
        parsed = parse(html)
        assert "script" not in parsed.names
        assert "alert('x')" in "".join(parsed.text)
        assert not result.offline or HOSTILE in parsed.text


def test_the_same_result_gives_the_same_page(served):
    assert page(served) == page(served)


def test_the_terminal_shows_a_row_for_each_level_within_its_width(served, offline, printed):
    for result, rows in ((served, served.levels), (offline, offline.offline)):
        text = printed(print_result, result)
        assert all(rate(row.texts_per_s) in text for row in rows)
        assert "\x1b" not in text
    assert "HTTP 429: 21" in printed(print_result, served)


def test_stages_and_numbers_are_not_broken_in_80_columns(offline, printed):
    names = {"stage": "openvino-int8-static-packed", "texts_per_s": 143_455.0}
    stage = offline.offline[0].model_copy(update={**names, "tokens_per_s": 1_144_182.0})
    lines = printed(print_result, offline.model_copy(update={"offline": (stage,)})).splitlines()
    (line,) = [line for line in lines if line.startswith("openvino-int8-static-packed ")]
    assert line.split()[-1] == "1,144,182"
    assert len(line) <= 80


def test_square_brackets_in_a_name_are_escaped(offline, printed):
    stage = offline.offline[0].model_copy(update={"stage": "[bold]int8[/]"})
    text = printed(
        print_result, offline.model_copy(update={"offline": (stage,), "model": "[red]m"})
    )
    assert "[bold]int8[/]" in text
    assert "[red]m" in text


def test_the_page_is_written_atomically(served, tmp_path):
    write_page(tmp_path / "bench.html", served)
    assert (tmp_path / "bench.html").read_text(encoding="utf-8") == drawn(served)
    assert [path.name for path in tmp_path.iterdir()] == ["bench.html"]
    with pytest.raises(ConfigError, match="expected a file path in an existing folder"):
        write_page(tmp_path / "absent" / "bench.html", served)


def test_without_matplotlib_the_hint_is_the_install_command(served, monkeypatch, printed):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "pipework.benchmarks.report.plots", raising=False)
    monkeypatch.delattr(pipework.benchmarks.report, "plots", raising=False)
    assert "headlines" in printed(print_result, served)
    with pytest.raises(ModuleNotFoundError) as caught:
        page(served)
    error = as_pipe_error(caught.value)
    assert isinstance(error, MissingDependencyError)
    assert error.hint == "pip install 'pipework[bench]'"
