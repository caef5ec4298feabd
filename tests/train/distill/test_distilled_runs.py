"""Distillation runs, from config to manifest."""

import json
from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import load_file

from pipework.errors import CheckFailedError, DataError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.run_config import load_config
from pipework.train.run import train

STEPS = ["train.max_steps=24", "train.eval_every=8", "train.save_every=3"]


def weights(run):
    return load_file(run / "checkpoint" / "model.safetensors")


def remove_label_information(tmp_path):
    """Replace the labels of the train rows by uninformative labels."""
    lines = (tmp_path / "train.tsv").read_text().splitlines()
    rows = [line.split("\t")[0] for line in lines[1:]]
    lost = (f"{text}\t{n // 2 % 2}\n" for n, text in enumerate(rows))
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(lost))


@pytest.mark.slow
def test_a_student_learns_from_its_teacher_if_the_labels_are_uninformative(
    small, teacher, tmp_path
):
    config = small("train.max_steps=60", f"train.teacher={teacher}", "train.soft_weight=1.0")
    remove_label_information(tmp_path)
    manifest = train(config, tmp_path / "student", NullProgress())
    assert manifest.data.metrics["dev"].scores["accuracy"] == 1
    alone = small("train.max_steps=60")
    remove_label_information(tmp_path)
    with suppress(CheckFailedError):
        train(alone, tmp_path / "alone", NullProgress())
    scores = read_manifest(tmp_path / "alone").data.metrics["dev"].scores
    assert scores["accuracy"] < 0.9


def test_unlabelled_texts_are_part_of_an_epoch(small, teacher, tmp_path):
    rows = "".join(f"{'good' if n % 3 else 'bad'} stuff number {n}\n" for n in range(24))
    (tmp_path / "more.tsv").write_text("text\n" + rows)
    extra = [f"train.teacher={teacher}", "data.unlabelled=more.tsv", "train.max_steps=9"]
    with suppress(CheckFailedError):
        train(small(*extra), tmp_path / "student", NullProgress())
    lines = [json.loads(line) for line in (tmp_path / "student/log.jsonl").read_text().splitlines()]
    evaluated = [line["step"] for line in lines if line["group"] == "dev"]
    assert evaluated == [8, 9]  # 40 + 24 rows, 8 a step
    log = (tmp_path / "student" / "train.log").read_text()
    assert "training on the logits of teacher in addition to the labels of 40 rows" in log


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_student_ends_with_the_same_bits(small, teacher, forked, tmp_path, processes):
    rows = "".join(f"{'good' if n % 3 else 'bad'} stuff number {n}\n" for n in range(24))
    (tmp_path / "more.tsv").write_text("text\n" + rows)
    options = [*STEPS, f"train.teacher={teacher}", "data.unlabelled=more.tsv"]
    config = small(*options, "train.token_dropout=0.2")
    assert forked(config, tmp_path / "whole", processes=processes) == [0] * processes
    killed = forked(config, tmp_path / "killed", processes=processes, kill_at=8)
    assert killed[0] == -9
    again = forked(config, tmp_path / "killed", processes=processes, resume=True)
    assert again == [0] * processes
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def test_a_resume_with_another_teacher_is_refused(small, teacher, forked, tmp_path):
    config = small(*STEPS, f"train.teacher={teacher}")
    assert forked(config, tmp_path / "run", kill_at=8)[0] == -9
    manifest = teacher / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"max_length": 16', '"max_length": 15'))
    with pytest.raises(DataError, match="the teacher teacher changed since"):
        train(config, tmp_path / "run", NullProgress(), resume=True)


def test_a_teacher_uses_its_own_tokenizer(small, teacher, tmp_path):
    config = small(
        f"train.teacher={teacher}",
        "train.max_steps=60",
        "model.lowercase=false",
        "model.vocab_size=60",
        "train.soft_weight=1.0",
    )
    remove_label_information(tmp_path)
    assert (
        train(config, tmp_path / "run", NullProgress()).data.metrics["dev"].scores["accuracy"] == 1
    )
    ours, theirs = ((run / "tokenizer.json").read_text() for run in (tmp_path / "run", teacher))
    assert ours != theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "row", "teacher", "metric"),
    [
        (
            "regression",
            lambda n: {"text": f"{'high' if n % 2 else 'low'} number {n}", "label": n % 2 + 0.5},
            "{}",
            "pearson",
        ),
        (
            "multi_label",
            lambda n: {
                "text": f"{'one' if n % 2 else ''} {'two' if n % 3 else ''} {n}",
                "label": ["a"] * (n % 2) + ["b"] * (n % 3 > 0),
            },
            "['{}']",
            "micro_f1",
        ),
    ],
)
def test_a_task_of_another_kind_is_distilled(tmp_path, kind, row, teacher, metric):
    for name, count in (("train", 60), ("dev", 20)):
        lines = (json.dumps(row(n)) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "c.toml").write_text(
        f'[task]\nkind = "{kind}"\n[data]\ntrain = "train.jsonl"\ndev = "dev.jsonl"\n'
        '[model]\npreset = "tiny"\nmax_length = 16\nvocab_size = 100\n[train]\nmax_steps = 100\n'
        'epochs = 30\nlearning_rate = 1e-3\nbatch_size = 8\nprecision = "fp32"\nreport = false\n'
    )
    path = str(tmp_path / "c.toml")
    train(load_config(path, []), tmp_path / "teacher", NullProgress())
    student = load_config(path, ["train.teacher=" + teacher.format(tmp_path / "teacher")])
    manifest = train(student, tmp_path / "student", NullProgress())
    assert manifest.data.metrics["dev"].scores[metric] > 0.9
