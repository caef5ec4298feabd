"""The page of a roofline is drawn from a stored result; results without roofs are rejected."""

import re
import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from pipework.benchmarks.results_schema.provenance import Machine, Provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.records.engine_results import (
    Roof,
    RoofedEngine,
    RooflineResult,
    roofline_rows,
)
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.result_page import limits, main, page
from pipework.errors import DataError

CHROMIUM = shutil.which("chromium")
EVIL = "\"'><script>document.title='run'</script>&$a$"


def engine(name, roof, texts_per_s, flop_per_byte):
    return RoofedEngine(
        engine=name,
        texts_per_s=texts_per_s,
        roof_texts_per_s=texts_per_s / 0.8,
        share=0.8,
        roof_gflops=texts_per_s / 0.8 * 0.4,
        gflop_per_text=0.4,
        flop_per_byte=flop_per_byte,
        roof=roof,
    )


@pytest.fixture
def roofed():
    """Two engines under two roofs; the ridges are at 40 and 8 operations per byte."""
    return RooflineResult(
        model="SST-2",
        texts="synthetic",
        batch_tokens=1024,
        engines=(
            engine("openvino-int8-static-packed", "openvino int8 static", 1000, 90),
            engine("onnx-fp32", "onnx fp32", 200, 4),
        ),
        roofs=(
            Roof(name="openvino int8 static", gflops=800),
            Roof(name="onnx fp32", gflops=160),
        ),
        bandwidth_gb_s=20,
        command=("python", "-m", "pipework.benchmarks.studies.roofline", "RUN", "SST-2"),
        provenance=Provenance(
            created_at=datetime(2026, 11, 20, 9, 30, tzinfo=UTC),
            pipework="0.1.0",
            git_commit="0123456789abcdef0123456789abcdef01234567",
            machine=Machine(
                cpu="AMD EPYC", cores=2, memory_gib=7.8, python="3.11.2", system="Debian 12"
            ),
            versions={"onnxruntime": "1.31.1"},
        ),
    )


@pytest.fixture
def old(roofed):
    """A result stored before roofs were measured."""
    engines = tuple(
        item.model_copy(update={"flop_per_byte": None, "roof": None}) for item in roofed.engines
    )
    return roofed.model_copy(update={"engines": engines, "roofs": (), "bandwidth_gb_s": None})


def test_the_attainable_rate_is_the_minimum_of_memory_and_compute(roofed):
    assert [roofed.attainable(item) for item in roofed.engines] == [800, 80]
    assert [row[6:] for row in roofline_rows(roofed)] == [
        ("400", "90", "800", "50%"),
        ("80", "4", "80", "100%"),
    ]


def test_new_and_old_results_are_read_back_unchanged(roofed, old, tmp_path):
    for result in (roofed, old):
        write_result(tmp_path / "r.json", result)
        assert read_stored(tmp_path / "r.json") == result
    assert [row[7:] for row in roofline_rows(old)] == [("-", "-", "-")] * 2


def test_the_bottleneck_of_each_engine_is_named(roofed):
    expected = "onnx-fp32 may be memory-bound; the other engines are compute-bound."
    assert limits(roofed) == expected
    flat = roofed.model_copy(update={"bandwidth_gb_s": 100})
    assert "memory bandwidth does not limit them" in limits(flat)
    slope = roofed.model_copy(update={"bandwidth_gb_s": 1})
    assert limits(slope).startswith("All engines may be memory-bound")


def test_the_page_draws_roofs_engines_and_memory(roofed):
    html = page(roofed)
    assert html.count("<svg") == 1
    for words in ("openvino int8 static: 800 GFLOP/s", "memory: 20.0 GB/s", "onnx-fp32", "RUN"):
        assert words in html
    assert page(roofed) == html
    assert "http:" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)


def test_names_are_escaped(roofed):
    evil_engine = roofed.engines[0].model_copy(update={"engine": EVIL})
    evil = {"model": EVIL, "texts": EVIL, "command": (EVIL,), "engines": (evil_engine,)}
    html = page(roofed.model_copy(update=evil))
    assert "<script" not in html


def test_many_engines_and_roofs_are_drawn(roofed):
    roofs = tuple(Roof(name=f"onnx {n}", gflops=10 + n) for n in range(10))
    engines = tuple(engine(f"e{n}", f"onnx {n}", 100 + n, 10 + n) for n in range(10))
    html = page(roofed.model_copy(update={"roofs": roofs, "engines": engines}))
    assert all(f"onnx {n}: {10 + n}" in html for n in range(10))


def test_a_stored_roofline_is_drawn_and_other_results_are_rejected(
    roofed, old, served, tmp_path, capsys
):
    stored, drawn = tmp_path / "r.json", tmp_path / "r.html"
    write_result(stored, roofed)
    assert main([str(stored), str(drawn)]) == 0
    assert drawn.read_text(encoding="utf-8") == page(roofed)
    write_result(stored, old)
    assert main([str(stored), str(drawn)]) == 2
    printed = capsys.readouterr().err
    assert "the stored roofline of SST-2 has no roofs and no bandwidth" in printed
    assert "measure again: python -m pipework.benchmarks.studies.roofline" in printed
    write_result(stored, served)
    assert main([str(stored), str(drawn)]) == 2
    expected = "expected a roofline, bulk jobs, replicas or front processes, found bench"
    assert expected in capsys.readouterr().err
    with pytest.raises(DataError):
        page(old)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_the_figure_without_console_errors(roofed, tmp_path):
    (tmp_path / "r.html").write_text(page(roofed), encoding="utf-8")
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [*words, f"file://{tmp_path / 'r.html'}"], check=True, capture_output=True, timeout=300
    )
    assert done.stdout.count(b"<svg") == 1
    assert not re.search(rb"CONSOLE.*(Refused|Error|violates)", done.stderr)
