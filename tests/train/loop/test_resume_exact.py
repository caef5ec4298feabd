"""A run that was killed goes on as if nothing had happened."""

import json
import random
from contextlib import suppress
from functools import partial

import pytest
import torch

from pipework.errors import CheckFailedError, ConfigError, DataError, RunFolderError
from pipework.progress import Silent
from pipework.run_folder.manifest import read_manifest
from pipework.train.data import disk_cache
from pipework.train.loop.resume import latest
from pipework.train.run import train as run_once

STEPS = ["train.max_steps=24", "train.eval_every=7", "train.save_every=3", "model.dropout=0.2"]
LOSSY = ["train.token_dropout=0.2", "train.early_stop=5"]


def digests(run):
    return {file.path: file.sha256 for file in read_manifest(run).model.checkpoint}


def learned(run):
    """All that the log says of learning; not how long it took."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    clocks = {"elapsed_s", "examples_per_s"}
    return [{key: line[key] for key in line.keys() - clocks} for line in lines]


def train(config, run, progress, *, resume=False):
    """Train in this process; whether so few steps teach anything is not the question here."""
    with suppress(CheckFailedError):
        run_once(config, run, progress, resume=resume)


@pytest.mark.parametrize(
    ("processes", "extra"),
    [
        (1, ()),
        (1, ("train.accumulate=3", "train.batch_size=3")),
        (1, ("train.precision=bf16", "train.optimizer=adafactor")),
        (1, ("train.precision=fp16", "train.optimizer=sgd", "train.learning_rate=0.01")),
        (1, ("train.optimizer_on_cpu=true", "train.schedule=cosine_restarts")),
        (2, ("train.accumulate=2", "train.batch_size=4")),
        (3, ("train.batch_size=7",)),
    ],
    ids=["plain", "mid-window", "bf16-adafactor", "fp16-sgd", "on-cpu", "two", "three"],
)
def test_a_run_killed_at_random_steps_ends_with_the_same_bits(
    small, forked, tmp_path, processes, extra
):
    config = small(*STEPS, *LOSSY, *extra)
    assert forked(config, tmp_path / "whole", processes=processes) == [0] * processes
    run, chance = tmp_path / "killed", random.Random(str(extra))
    for _ in range(3):
        # Counted anew in each life, of which each gets as far as its first checkpoint.
        kill_at = chance.randint(3 * config.train.accumulate + 1, 7 * config.train.accumulate)
        before = latest(run)
        assert forked(config, run, processes=processes, kill_at=kill_at, resume=True)[0] == -9
        assert latest(run).standing.step > (before.standing.step if before else 0)
    assert forked(config, run, processes=processes, resume=True) == [0] * processes
    assert digests(run) == digests(tmp_path / "whole")
    assert learned(run) == learned(tmp_path / "whole")
    assert not (run / "state").exists()


def test_the_scale_that_fp16_has_found_is_put_back(small, forked, tmp_path, monkeypatch):
    """It starts so high that the first steps overflow, and would do so again."""
    high = partial(torch.amp.GradScaler, init_scale=2.0**24)
    monkeypatch.setattr(torch.amp, "GradScaler", high)  # the forked processes have it too
    config = small(*STEPS, "train.precision=fp16", "train.learning_rate=1e-3")
    assert forked(config, tmp_path / "whole") == [0]
    assert {line["scale"] for line in learned(tmp_path / "whole") if "scale" in line} != {2.0**24}
    assert forked(config, tmp_path / "killed", kill_at=17)[0] == -9
    assert forked(config, tmp_path / "killed", resume=True) == [0]
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def test_with_another_number_of_processes_it_goes_on_and_says_so(small, forked, tmp_path):
    config = small(*STEPS)
    run = tmp_path / "run"
    assert forked(config, run, processes=2, kill_at=8)[0] == -9

    class Noting(Silent):
        notes: list[str] = []  # noqa: RUF012

        def note(self, line):
            self.notes.append(line)

    train(config, run, noting := Noting(), resume=True)
    assert read_manifest(run).data.metrics["dev"]
    assert any("of 2 processes, now there are 1" in note for note in noting.notes)


def test_other_settings_are_refused_by_name(small, forked, tmp_path):
    forked(small(*STEPS), tmp_path / "run", kill_at=8)
    changed = small(*STEPS, "train.learning_rate=0.5")
    with pytest.raises(
        ConfigError, match=r"started with train\.learning_rate = 0\.001, found 0\.5"
    ):
        train(changed, tmp_path / "run", Silent(), resume=True)
    train(small(*STEPS, "train.save_every=5"), tmp_path / "run", Silent(), resume=True)


def test_a_finished_run_is_left_as_it_is(small, tmp_path):
    config = small(*STEPS)
    train(config, tmp_path / "run", Silent())
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    train(config, tmp_path / "run", Silent(), resume=True)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    with pytest.raises(RunFolderError, match="already holds a finished run"):
        run_once(config, tmp_path / "run", Silent())


def test_without_a_checkpoint_it_starts_again(small, forked, tmp_path):
    config = small(*STEPS)
    forked(config, tmp_path / "run", kill_at=2)
    train(config, tmp_path / "run", Silent(), resume=True)
    train(config, tmp_path / "whole", Silent())
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text.replace("thing", "object"), "the train file"),
        (lambda text: text + "new thing\t1\n", "the train file"),
    ],
)
def test_other_data_are_refused_by_name(small, forked, tmp_path, change, what):
    config = small(*STEPS)
    forked(config, tmp_path / "run", kill_at=8)
    path = tmp_path / "train.tsv"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=f"{what} changed since"):
        train(config, tmp_path / "run", Silent(), resume=True)


def test_other_labels_are_refused_by_name(small, forked, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("0\n1\n")
    config = small(*STEPS, f"task.labels={names}")
    forked(config, tmp_path / "run", kill_at=8)
    names.write_text("1\n0\n")
    with pytest.raises(DataError, match="the labels changed since"):
        train(config, tmp_path / "run", Silent(), resume=True)


def test_a_run_goes_on_after_pipework_has_changed(small, forked, tmp_path, monkeypatch):
    config = small(*STEPS)
    assert forked(config, tmp_path / "whole") == [0]
    forked(config, tmp_path / "run", kill_at=8)
    monkeypatch.setattr(disk_cache, "_code", lambda: ("another release",))
    train(config, tmp_path / "run", Silent(), resume=True)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_an_elastic_job_goes_on_whatever_count_each_machine_has(
    small, forked, tmp_path, monkeypatch
):
    config, run = small(*STEPS), tmp_path / "run"
    assert forked(config, run, processes=2, kill_at=8)[0] == -9
    before = (run / "log.jsonl").read_text().splitlines()[0]
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert forked(config, run, processes=2) == [0, 0]
    assert (run / "log.jsonl").read_text().splitlines()[0] == before  # with its time of day
