"""Runs that learn from other runs, from config to manifest."""

import json
from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import load_file

from pipework.errors import CheckFailedError, ConfigError, DataError
from pipework.progress import Silent
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.run_config import load_config
from pipework.train.run import train

STEPS = ["train.max_steps=24", "train.eval_every=8", "train.save_every=3"]


def weights(run):
    return load_file(run / "checkpoint" / "model.safetensors")


@pytest.fixture
def teacher(small, tmp_path):
    run = tmp_path / "teacher"
    train(small("train.max_steps=60"), run, Silent())
    return run


def with_labels_lost(tmp_path):
    """Give every train row the same two labels by turns of two: nothing can be learned of them."""
    lines = (tmp_path / "train.tsv").read_text().splitlines()
    rows = [line.split("\t")[0] for line in lines[1:]]
    lost = (f"{text}\t{n // 2 % 2}\n" for n, text in enumerate(rows))
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(lost))


def test_a_student_of_a_good_teacher_learns_where_labels_teach_nothing(small, teacher, tmp_path):
    config = small("train.max_steps=60", f"train.teacher={teacher}", "train.soft_weight=1.0")
    with_labels_lost(tmp_path)
    manifest = train(config, tmp_path / "student", Silent())
    assert manifest.data.metrics["dev"].scores["accuracy"] == 1
    alone = small("train.max_steps=60")
    with_labels_lost(tmp_path)
    with suppress(CheckFailedError):
        train(alone, tmp_path / "alone", Silent())
    scores = read_manifest(tmp_path / "alone").data.metrics["dev"].scores
    assert scores["accuracy"] < 0.9


def test_texts_without_labels_are_rows_of_an_epoch(small, teacher, tmp_path):
    rows = "".join(f"{'good' if n % 3 else 'bad'} stuff number {n}\n" for n in range(24))
    (tmp_path / "more.tsv").write_text("text\n" + rows)
    extra = [f"train.teacher={teacher}", "data.unlabelled=more.tsv", "train.max_steps=9"]
    with suppress(CheckFailedError):
        train(small(*extra), tmp_path / "student", Silent())
    lines = [json.loads(line) for line in (tmp_path / "student/log.jsonl").read_text().splitlines()]
    judged = [line["step"] for line in lines if line["group"] == "dev"]
    assert judged == [8, 9]  # 40 + 24 rows, 8 a step
    said = (tmp_path / "student" / "train.log").read_text()
    assert "learning from teacher beside the labels of 40 rows" in said


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_student_ends_with_the_same_bits(small, teacher, forked, tmp_path, processes):
    rows = "".join(f"{'good' if n % 3 else 'bad'} stuff number {n}\n" for n in range(24))
    (tmp_path / "more.tsv").write_text("text\n" + rows)
    given = [*STEPS, f"train.teacher={teacher}", "data.unlabelled=more.tsv"]
    config = small(*given, "train.token_dropout=0.2")
    assert forked(config, tmp_path / "whole", processes=processes) == [0] * processes
    killed = forked(config, tmp_path / "killed", processes=processes, kill_at=8)
    assert killed[0] == -9
    again = forked(config, tmp_path / "killed", processes=processes, resume=True)
    assert again == [0] * processes
    whole, found = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(np.array_equal(whole[name], found[name]) for name in whole)


def test_it_does_not_go_on_with_another_teacher(small, teacher, forked, tmp_path):
    config = small(*STEPS, f"train.teacher={teacher}")
    assert forked(config, tmp_path / "run", kill_at=8)[0] == -9
    manifest = teacher / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"max_length": 16', '"max_length": 15'))
    with pytest.raises(DataError, match="the teacher teacher changed since"):
        train(config, tmp_path / "run", Silent(), resume=True)


def test_a_teacher_with_another_tokenizer_is_read_through_its_own(small, teacher, tmp_path):
    config = small(
        f"train.teacher={teacher}",
        "train.max_steps=60",
        "model.lowercase=false",
        "model.vocab_size=60",
        "train.soft_weight=1.0",
    )
    with_labels_lost(tmp_path)
    assert train(config, tmp_path / "run", Silent()).data.metrics["dev"].scores["accuracy"] == 1
    ours, theirs = ((one / "tokenizer.json").read_text() for one in (tmp_path / "run", teacher))
    assert ours != theirs


def test_values_are_taught_too(tmp_path):
    for name, count in (("train", 60), ("dev", 20)):
        rows = "".join(
            f"{'high' if n % 2 else 'low'} number {n}\t{n % 2}.5\n" for n in range(count)
        )
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    (tmp_path / "c.toml").write_text(
        '[task]\nkind = "regression"\n[data]\ntrain = "train.tsv"\ndev = "dev.tsv"\n'
        '[model]\npreset = "tiny"\nmax_length = 16\nvocab_size = 100\n[train]\nmax_steps = 60\n'
        'epochs = 30\nlearning_rate = 1e-3\nbatch_size = 8\nprecision = "fp32"\nreport = false\n'
    )
    path = str(tmp_path / "c.toml")
    train(load_config(path, []), tmp_path / "teacher", Silent())
    taught = load_config(path, ["train.teacher=" + str(tmp_path / "teacher")])
    found = train(taught, tmp_path / "student", Silent())
    assert found.data.metrics["dev"].scores["pearson"] > 0.9


def test_several_labels_are_taught_too(tmp_path):
    for name, count in (("train", 60), ("dev", 20)):
        rows = "".join(
            json.dumps(
                {
                    "text": f"{'one' if n % 2 else ''} {'two' if n % 3 else ''} {n}",
                    "label": ["a"] * (n % 2) + ["b"] * (n % 3 > 0),
                }
            )
            + "\n"
            for n in range(count)
        )
        (tmp_path / f"{name}.jsonl").write_text(rows)
    (tmp_path / "c.toml").write_text(
        '[task]\nkind = "multi_label"\n[data]\ntrain = "train.jsonl"\ndev = "dev.jsonl"\n'
        '[model]\npreset = "tiny"\nmax_length = 16\nvocab_size = 100\n[train]\nmax_steps = 100\n'
        'epochs = 30\nlearning_rate = 1e-3\nbatch_size = 8\nprecision = "fp32"\nreport = false\n'
    )
    path = str(tmp_path / "c.toml")
    train(load_config(path, []), tmp_path / "teacher", Silent())
    taught = load_config(path, [f"train.teacher=['{tmp_path / 'teacher'}']"])
    found = train(taught, tmp_path / "student", Silent())
    assert found.data.metrics["dev"].scores["micro_f1"] > 0.9


def test_settings_that_do_not_fit_are_refused(small):
    with pytest.raises(ConfigError, match=r"data\.unlabelled needs a train\.teacher"):
        small("data.unlabelled=more.tsv")
