"""A killed run that is resumed gives the same result as an uninterrupted run."""

import json
import random
from contextlib import suppress
from functools import partial

import pytest
import torch

from pipework.errors import CheckFailedError, ConfigError, DataError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.train.data import disk_cache
from pipework.train.loop.resume import latest
from pipework.train.run import train as run_once

STEPS = ["train.max_steps=24", "train.eval_every=7", "train.save_every=3", "model.dropout=0.2"]
LOSSY = ["train.token_dropout=0.2", "train.early_stop=5"]
FP16_SGD = ("train.precision=fp16", "train.optimizer=sgd", "train.learning_rate=0.01")


def digests(run):
    return {file.path: file.sha256 for file in read_manifest(run).model.checkpoint}


def learned(run):
    """The lines of log.jsonl without timings."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    clocks = {"elapsed_s", "examples_per_s"}
    return [{key: line[key] for key in line.keys() - clocks} for line in lines]


def train(config, run, progress, *, resume=False):
    """Train in this process; the run may learn nothing."""
    with suppress(CheckFailedError):
        run_once(config, run, progress, resume=resume)


@pytest.mark.parametrize(
    ("processes", "extra"),
    [
        pytest.param(
            2, ("train.accumulate=2", "train.batch_size=4"), id="two", marks=pytest.mark.slow
        ),
        pytest.param(
            1, ("train.optimizer_on_cpu=true", "train.schedule=cosine_restarts"), id="on-cpu"
        ),
        *(
            pytest.param(processes, extra, id=name, marks=pytest.mark.slow)
            for name, processes, extra in (
                ("plain", 1, ()),
                ("bf16-adafactor", 1, ("train.precision=bf16", "train.optimizer=adafactor")),
                ("mid-window", 1, ("train.accumulate=3", "train.batch_size=3")),
                ("fp16-sgd", 1, FP16_SGD),
                ("three", 3, ("train.batch_size=7",)),
            )
        ),
    ],
)
def test_a_run_killed_at_random_steps_ends_with_the_same_bits(
    small, forked, tmp_path, processes, extra
):
    config = small(*STEPS, *LOSSY, *extra)
    assert forked(config, tmp_path / "whole", processes=processes) == [0] * processes
    run, chance = tmp_path / "killed", random.Random(str(extra))
    for _ in range(3):
        # The count starts at 0 in each process; each process reaches at least one checkpoint.
        kill_at = chance.randint(3 * config.train.accumulate + 1, 7 * config.train.accumulate)
        before = latest(run)
        assert forked(config, run, processes=processes, kill_at=kill_at, resume=True)[0] == -9
        assert latest(run).state.step > (before.state.step if before else 0)
    assert forked(config, run, processes=processes, resume=True) == [0] * processes
    assert digests(run) == digests(tmp_path / "whole")
    assert learned(run) == learned(tmp_path / "whole")
    assert not (run / "state").exists()


@pytest.mark.slow
def test_the_fp16_scale_is_restored(small, forked, tmp_path, monkeypatch):
    """The initial scale overflows in the first steps, and would overflow again after a resume."""
    high = partial(torch.amp.GradScaler, init_scale=2.0**24)
    monkeypatch.setattr(torch.amp, "GradScaler", high)  # forked processes inherit it
    config = small(*STEPS, "train.precision=fp16", "train.learning_rate=1e-3")
    assert forked(config, tmp_path / "whole") == [0]
    assert {line["scale"] for line in learned(tmp_path / "whole") if "scale" in line} != {2.0**24}
    assert forked(config, tmp_path / "killed", kill_at=17)[0] == -9
    assert forked(config, tmp_path / "killed", resume=True) == [0]
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def test_a_resume_with_another_number_of_processes_is_reported(small, forked, tmp_path, noting):
    config = small(*STEPS)
    run = tmp_path / "run"
    assert forked(config, run, processes=2, kill_at=8)[0] == -9
    train(config, run, noting, resume=True)
    assert read_manifest(run).data.metrics["dev"]
    assert any("written by 2 processes, resuming with 1" in note for note in noting.lines)


def test_a_resume_with_other_settings_is_refused(small, forked, tmp_path):
    forked(small(*STEPS), tmp_path / "run", kill_at=8)
    changed = small(*STEPS, "train.learning_rate=0.5")
    with pytest.raises(
        ConfigError, match=r"started with train\.learning_rate = 0\.001, found 0\.5"
    ):
        train(changed, tmp_path / "run", NullProgress(), resume=True)
    train(small(*STEPS, "train.save_every=5"), tmp_path / "run", NullProgress(), resume=True)


def test_a_finished_run_is_not_modified(small, tmp_path):
    config = small(*STEPS)
    train(config, tmp_path / "run", NullProgress())
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    train(config, tmp_path / "run", NullProgress(), resume=True)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before


def test_a_resume_without_a_checkpoint_restarts(small, forked, tmp_path):
    config = small(*STEPS)
    forked(config, tmp_path / "run", kill_at=2)
    train(config, tmp_path / "run", NullProgress(), resume=True)
    train(config, tmp_path / "whole", NullProgress())
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text.replace("thing", "object"), "the train file"),
        (lambda text: text + "new thing\t1\n", "the train file"),
    ],
)
def test_a_resume_with_other_data_is_refused(small, forked, tmp_path, change, what):
    config = small(*STEPS)
    forked(config, tmp_path / "run", kill_at=8)
    path = tmp_path / "train.tsv"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=f"{what} changed since"):
        train(config, tmp_path / "run", NullProgress(), resume=True)


def test_a_resume_with_other_labels_is_refused(small, forked, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("0\n1\n")
    config = small(*STEPS, f"task.labels={names}")
    forked(config, tmp_path / "run", kill_at=8)
    names.write_text("1\n0\n")
    with pytest.raises(DataError, match="the labels changed since"):
        train(config, tmp_path / "run", NullProgress(), resume=True)


@pytest.mark.slow
def test_a_run_can_be_resumed_with_another_version(small, forked, tmp_path, monkeypatch):
    config = small(*STEPS)
    assert forked(config, tmp_path / "whole") == [0]
    forked(config, tmp_path / "run", kill_at=8)
    monkeypatch.setattr(disk_cache, "_code", lambda: ("another release",))
    train(config, tmp_path / "run", NullProgress(), resume=True)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_an_elastic_job_resumes_automatically(small, forked, tmp_path, monkeypatch):
    config, run = small(*STEPS), tmp_path / "run"
    assert forked(config, run, processes=2, kill_at=8)[0] == -9
    before = (run / "log.jsonl").read_text().splitlines()[0]
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert forked(config, run, processes=2) == [0, 0]
    assert (run / "log.jsonl").read_text().splitlines()[0] == before  # including elapsed_s
