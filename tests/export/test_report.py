import re
import shutil

import pytest
from playwright.sync_api import sync_playwright

from pipework.errors import ConfigError
from pipework.export.report import page, write_page
from pipework.run_folder.manifest import read_manifest


def test_every_engine_is_plotted_and_listed(exported_run):
    manifest = read_manifest(exported_run)
    drawn = page(manifest)
    assert drawn.count("<svg") == 2
    assert drawn.count("onnx-fp32") >= 3
    assert "proven" in drawn


def test_no_column_is_cut_in_a_window_of_1200_pixels(exported_run, tmp_path):
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is absent: apt-get install chromium")
    manifest = read_manifest(exported_run)
    (engine,) = manifest.engines
    names = ("openvino-int8-packed", "onnx-int8-dynamic-packed", "tensorrt-fp16-packed")
    engines = tuple(engine.model_copy(update={"name": name}) for name in names)
    write_page(tmp_path / "e.html", manifest.model_copy(update={"engines": (engine, *engines)}))
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(f"file://{tmp_path}/e.html")
        hidden = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
        assert page.evaluate(hidden) == [0]
        browser.close()


def test_the_page_has_no_external_resources(exported_run):
    drawn = page(read_manifest(exported_run))
    assert not re.search(r'(?:src|href)="(?!#)', drawn)


def test_an_engine_that_was_not_run_is_labelled(exported_run):
    manifest = read_manifest(exported_run)
    engine = manifest.engines[0].model_copy(update={"parity": None, "speed": None})
    drawn = page(manifest.model_copy(update={"engines": (engine,)}))
    assert "built, not run" in drawn
    assert "<svg" not in drawn


def test_a_run_without_engines_and_an_unwritable_path_are_reported(
    trained_run, exported_run, tmp_path
):
    with pytest.raises(ConfigError, match="has no engines to report"):
        write_page(tmp_path / "page.html", read_manifest(trained_run))
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(tmp_path / "no" / "page.html", read_manifest(exported_run))
