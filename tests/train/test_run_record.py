"""The manifest makes a run complete."""

import pytest

from tests.train.learning import learn


def test_an_interrupted_run_is_reported_and_restarted(small, tmp_path, monkeypatch, noting):
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipework.train.run_record.write_manifest",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            learn(small(), tmp_path / "run")
    learn(small(), tmp_path / "run", noting)
    assert any("unfinished run, stopped after step 6" in line for line in noting.lines)
    assert (tmp_path / "run" / "manifest.json").exists()


def test_a_run_killed_while_writing_its_manifest_is_restarted(small, tmp_path, monkeypatch):
    def killed(run, _):
        (run / "manifest.json.partial").write_text('{"schema_ver')
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipework.train.run_record.write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            learn(small(), tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json.partial").exists()
    learn(small(), tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").exists()
