"""The comparison of trainers runs every competitor on the same rows and stores the results.

The peer's library is not a dependency, so a fake executable with the same output replaces it.
"""

import json
import stat
import sys
from pathlib import Path

import pytest

from pipework.benchmarks.studies.peers.training import COMPETITORS, first_rows, main
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.train.config.run_config import SAMPLE

QUICK = ("--set", "train.epochs=1", "--set", "train.precision=fp32")
NAME = ("sample", "--name", "the sample")


def stand_in(folder, body):
    """Write an executable that is called like the peer's Python."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answering(folder):
    report = {"examples_per_s": 2.0, "scores": [0.4, 0.7, 0.6], "versions": {"accelerate": "1"}}
    with_words = f"json.dump(sys.argv[1:], open({str(folder / 'words.json')!r}, 'w'))\n"
    return stand_in(folder, f"{with_words}print('noise'); print({json.dumps(report)!r})")


@pytest.mark.slow
def test_a_comparison_has_every_competitor_with_every_seed(tmp_path):
    out = tmp_path / "r.json"
    words = [*NAME, *QUICK, "--rows", "96", "--seeds", "3", "4", "--phase-steps", "2"]
    assert main([*words, "--peer-python", answering(tmp_path), "--out", str(out)]) == 0
    found = read_stored(out)
    assert {(run.contender, run.seed) for run in found.runs} == {
        (competitor, seed) for competitor in COMPETITORS for seed in (3, 4)
    }
    assert [run.contender for run in found.runs[:4]] == [*COMPETITORS, COMPETITORS[1]]
    assert found.train_rows == 96
    assert (found.peer_versions, found.metric) == ({"accelerate": "1"}, "dev accuracy")
    own, other = found.of("pipework")[0], found.of("Trainer, best")[0]
    assert (other.examples_per_s, other.score) == (2.0, 70.0)
    assert own.examples_per_s > 10
    assert 0 < own.score < 100
    assert own.peak_memory_mib > 100 > other.peak_memory_mib
    passed = json.loads((tmp_path / "words.json").read_text())
    assert "train.seed=4" in passed
    assert any(word.startswith("data.train=") for word in passed)


def test_a_failed_competitor_is_reported_with_its_last_line(tmp_path, capsys):
    broken = stand_in(tmp_path, "sys.exit('no module named accelerate')")
    words = [*NAME, *QUICK, "--rows", "64", "--peer-python", broken]
    assert main([*words, "--out", str(tmp_path / "r.json")]) == 2
    assert "failed with exit code 1: no module named accelerate" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize("rows", [1, 50])
def test_first_rows_keep_the_header(tmp_path, rows):
    cut = first_rows("sample", [], rows, tmp_path)
    whole = Path(SAMPLE / "train.tsv").read_bytes().splitlines(keepends=True)
    assert cut.read_bytes() == b"".join(whole[: rows + 1])
