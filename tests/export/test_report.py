import re
from itertools import combinations

import pytest

from pipework.errors import ConfigError
from pipework.export.report import page, write_page
from pipework.run_folder.engine_record import CalibrationChange, Speed
from pipework.run_folder.manifest import read_manifest
from pipework.serve.config import EngineSettings


def test_every_engine_is_plotted_and_listed(exported_run):
    manifest = read_manifest(exported_run)
    drawn = page(manifest)
    assert drawn.count("<svg") == 2
    assert drawn.count("onnx-fp32") >= 3
    assert "proven" in drawn


TEXTS = """[...document.querySelectorAll('svg text')].map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.right, box.top, box.bottom];
})"""
GAP = 12  # pixels between texts


def touching(boxes):
    """Return the pairs of texts that touch or overlap."""
    return [
        (text, other)
        for (text, left, right, top, bottom), (other, left2, right2, top2, bottom2) in combinations(
            boxes, 2
        )
        if left < right2 + GAP and left2 < right + GAP and top < bottom2 and top2 < bottom
    ]


def test_neither_columns_nor_plots_are_cut_in_a_window_of_1200_pixels(
    exported_run, tmp_path, browser
):
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    speed = engine.speed.model_copy(update={"texts_per_s": 123_456.7})
    parity = engine.parity.model_copy(update={"max_abs": 0.05678})
    changes = {"speed": speed, "parity": parity}
    names = ("openvino-int8-static-packed", "onnx-int8-dynamic-packed", "tensorrt-fp16-packed")
    engines = tuple(engine.model_copy(update={**changes, "name": name}) for name in names)
    write_page(tmp_path / "e.html", manifest.model_copy(update={"engines": (engine, *engines)}))
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.goto(f"file://{tmp_path}/e.html")
    hidden = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert page.evaluate(hidden) == [0]
    texts = page.evaluate(TEXTS)
    assert touching(texts) == []
    assert {"openvino-int8-static-packed: 123,457", "0.001"} <= {text for text, *_ in texts}


def test_the_page_has_no_external_resources(exported_run):
    drawn = page(read_manifest(exported_run))
    assert not re.search(r'(?:src|href)="(?!#)', drawn)


def test_an_engine_that_was_not_run_is_labelled(exported_run):
    manifest = read_manifest(exported_run)
    engine = manifest.engines[0].model_copy(update={"parity": None, "speed": None})
    drawn = page(manifest.model_copy(update={"engines": (engine,)}))
    assert "built, not run" in drawn
    assert "<svg" not in drawn


def test_the_change_of_the_calibration_is_shown(exported_run):
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    change = CalibrationChange(
        rows=90, reference=0.02, engine=0.025, brier_reference=0.1, brier_engine=0.099
    )
    parity = engine.parity.model_copy(update={"calibration": change})
    changed = engine.model_copy(update={"parity": parity})
    text = page(manifest.model_copy(update={"engines": (changed,)}))
    assert "0.0250, +0.0050; 0.0990, -0.0010" in text


def test_the_default_engine_of_the_page_follows_the_settings(exported_run):
    manifest = read_manifest(exported_run)
    (exact,) = manifest.engines
    parity = exact.parity.model_copy(update={"flips": 9, "argmax_agreement": 0.98})
    fast = exact.model_copy(update={"name": "fast", "parity": parity})
    manifest = manifest.model_copy(update={"engines": (fast, exact)})
    for settings, default in (
        (EngineSettings(), "onnx-fp32"),
        (EngineSettings(label_changes=0.1), "fast"),
    ):
        text = page(manifest, settings)
        (row,) = re.findall(r"<tr><td>.*?proven, default", text, re.DOTALL)
        assert f">{default}<" in row.rpartition("<tr>")[2]
        assert f"Served by default: {default} (within the limits: " in text
        assert text.count("of the labels") == 1


def test_unreliable_speeds_are_an_alarm(exported_run):
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    speed = Speed(texts_per_s=1, batch=8, p50_ms=1, rows=1, threads=1, processor="", variation=0)
    for variation, alarms in ((2.5, 1), (0, 0)):
        measured = speed.model_copy(update={"variation": variation})
        timed = engine.model_copy(update={"speed": measured})
        text = page(manifest.model_copy(update={"engines": (timed,)}))
        assert text.count('<p class="alarm">') == alarms


def test_the_tolerance_is_shown_on_the_scale_of_the_differences(exported_run):
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    parity = engine.parity.model_copy(update={"unit": 50.0})
    manifest = manifest.model_copy(
        update={"engines": (engine.model_copy(update={"parity": parity}),)}
    )
    assert f"<td>{50 * parity.tolerance.max_abs:.3g}</td>" in page(manifest)


def test_a_run_without_engines_and_an_unwritable_path_are_reported(
    trained_run, exported_run, tmp_path
):
    with pytest.raises(ConfigError, match="has no engines to report"):
        write_page(tmp_path / "page.html", read_manifest(trained_run))
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(tmp_path / "no" / "page.html", read_manifest(exported_run))
