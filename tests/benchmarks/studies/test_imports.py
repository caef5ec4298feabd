"""The study of imports; the sources that it saves are used by the tests of the imports."""

import pytest

from pipework.benchmarks.studies import imports
from pipework.benchmarks.studies.imports import SOURCES, main, measure
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.export.config import ImportSettings


# test_onnx_source exports a graph of the newer exporter.
@pytest.mark.parametrize("source", sorted({*SOURCES} - {"safetensors", "ONNX, newer exporter"}))
def test_a_source_is_imported_exported_and_served(source):
    checks = [*measure(EncoderFamily.DISTILBERT, source)]
    assert [check.step for check in checks] == ["import", "padded", "packed", "serve"]
    assert [check.reason for check in checks] == [None] * 4
    assert all(0 <= check.max_abs < 1e-5 for check in checks)


def test_other_answers_of_the_server_are_found(tmp_path, monkeypatch):
    other = imports.save_classifier(tmp_path, EncoderFamily.DISTILBERT, initializer_range=0.3)
    opened = imports.open_any(str(other), ImportSettings())
    monkeypatch.setattr(imports, "open_any", lambda *_: opened)
    checks = [*measure(EncoderFamily.DISTILBERT, "safetensors")]
    assert [check.max_abs > 1e-3 for check in checks] == [False, False, False, True]


def test_the_result_is_stored_with_the_errors(run_study, monkeypatch, capsys):
    def damaged(folder, family):
        imports.save_classifier(folder, family)
        (folder / "config.json").write_text("{}")

    def unsupported(*_):
        message = "no exporter. Next steps:\nread"
        raise ValueError(message)

    sources = {"good": imports.save_classifier, "damaged": damaged, "unsupported": unsupported}
    monkeypatch.setattr(imports, "SOURCES", sources)
    monkeypatch.setattr(imports, "_export", lambda *_: 0.0)
    monkeypatch.setattr(imports, "_serve", lambda *_: 0.0)
    result = run_study(main, "--families", "distilbert", code=3)
    error = capsys.readouterr().err
    assert "1 sources were not imported: distilbert from damaged" in error
    assert result.head() == ("family", "good", "damaged", "unsupported")
    ((family, value, *others),) = result.table_rows()
    assert family == "distilbert"
    assert float(value) < 1e-5
    assert others == ["[1]", "[2]"]
    first, second = result.notes()
    assert first.startswith("[1] /source/config.json has no hidden_size")
    assert second == "[2] no exporter"
