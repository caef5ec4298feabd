"""Pretraining runs: resume, several processes, and use as a base model."""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from pipework.errors import CheckFailedError, ConfigError, RunFolderError
from pipework.progress import NullProgress
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import read_classifier, read_manifest
from pipework.train.config.run_config import load_config
from pipework.train.loop.resume import latest
from pipework.train.run import train
from tests.train.loop.test_resume_exact import digests, learned

QUICK = ["train.precision=fp32", "train.report=false", "train.max_steps=12", "train.save_every=2"]
CONFIG = """
[task]
kind = "pretrain"
[data]
train = "train.txt"
dev_rows = 12
format = "documents"
[model]
preset = "tiny"
max_length = 32
vocab_size = 300
[pretrain]
row_tokens = 64
[train]
batch_size = 4
learning_rate = 1e-3
epochs = 30
eval_every = 5
"""


def write_documents(folder):
    """Write synthetic documents whose segments count up; return a function that loads a config."""
    stories = [
        "\n".join(
            f"good thing number {s} follows bad thing number {s - 1}" for s in range(d, d + 8)
        )
        for d in range(60)
    ]
    (folder / "train.txt").write_text("\n\n".join(stories))
    (folder / "p.toml").write_text(CONFIG)

    def make(*extra):
        return load_config(str(folder / "p.toml"), [*QUICK, *extra])

    return make


@pytest.fixture
def documents(tmp_path):
    return write_documents(tmp_path)


@pytest.fixture(scope="module")
def pretrained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    train(write_documents(folder)(), folder / "pretrained", NullProgress())
    return folder / "pretrained"


@pytest.fixture
def pretrained(documents, pretrained_once, tmp_path):  # noqa: ARG001  (writes the documents)
    """A copy of the run, to be changed."""
    return shutil.copytree(pretrained_once, tmp_path / "pretrained")


def test_the_run_folder_keeps_its_contract(pretrained):
    manifest = read_manifest(pretrained)
    assert manifest.task.kind == "pretrain"
    assert manifest.task.labels == ()
    assert manifest.model.head == "masked+order"
    assert manifest.data.splits["dev"].rows == 12
    verify_files(pretrained, (manifest.input.tokenizer, *manifest.model.checkpoint))
    assert AutoModelForMaskedLM.from_pretrained(pretrained / "checkpoint").config.hidden_size == 128
    scored = manifest.data.metrics["dev"]
    assert {*scored.scores} == {"masked_accuracy", "order_accuracy"}
    assert {*scored.losses} == {"masked_loss", "order_loss"}
    on_dev = [line for line in learned(pretrained) if line["group"] == "dev"]
    assert {*scored.scores, *scored.losses} < on_dev[0].keys()
    assert not (pretrained / "state").exists()


@pytest.mark.slow
def test_the_masked_loss_falls(documents, tmp_path):
    train(documents("train.max_steps=60", "train.eval_every=12"), tmp_path / "run", NullProgress())
    on_dev = [line for line in learned(tmp_path / "run") if line["group"] == "dev"]
    assert on_dev[-1]["masked_loss"] < 0.7 * on_dev[0]["masked_loss"]
    assert on_dev[-1]["masked_accuracy"] > 0.4


@pytest.mark.slow
def test_the_order_of_segments_is_learned(documents, tmp_path):
    random = np.random.default_rng(0)
    stories = [
        "\n".join(
            f"{when} word{random.integers(30)} word{random.integers(30)}"
            for when in ("begin", "then", "later", "end")
        )
        for _ in range(400)
    ]
    config = documents("train.max_steps=150", "model.max_length=16", "train.batch_size=8")
    (tmp_path / "train.txt").write_text("\n\n".join(stories))
    manifest = train(config, tmp_path / "run", NullProgress())
    assert manifest.data.metrics["dev"].scores["order_accuracy"] > 0.85


def test_the_final_checkpoint_has_the_lowest_dev_loss(documents, tmp_path):
    manifest = train(
        documents("train.max_steps=30", "train.eval_every=3"), tmp_path / "r", NullProgress()
    )
    on_dev = [line for line in learned(tmp_path / "r") if line["group"] == "dev"]
    least = min(line["masked_loss"] + line["order_loss"] for line in on_dev)
    assert sum(manifest.data.metrics["dev"].losses.values()) == pytest.approx(least, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "extra"),
    [
        pytest.param(1, ("model.dropout=0.2",), id="plain"),
        pytest.param(
            1,
            ("model.family=albert", "train.accumulate=2", "train.precision=bf16"),
            id="albert",
        ),
        pytest.param(2, ("model.dropout=0.2", "train.accumulate=2"), id="two"),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(documents, forked, tmp_path, processes, extra):
    config = documents(*extra)
    assert forked(config, tmp_path / "whole", processes=processes) == [0] * processes
    run = tmp_path / "killed"
    for attempt in (1, 2):
        kill_at = 4 * config.train.accumulate
        assert forked(config, run, processes=processes, kill_at=kill_at, resume=True)[0] == -9
        assert latest(run).state.step >= 2 * attempt
    assert forked(config, run, processes=processes, resume=True) == [0] * processes
    assert digests(run) == digests(tmp_path / "whole")
    assert learned(run) == learned(tmp_path / "whole")


def test_two_processes_learn_the_same_as_one(documents, forked, tmp_path):
    config = documents("model.dropout=0.0", "train.optimizer=sgd", "train.learning_rate=0.1")
    for processes in (1, 2):
        assert forked(config, tmp_path / f"{processes}", processes=processes) == [0] * processes
    one, two = (load_file(tmp_path / n / "checkpoint" / "model.safetensors") for n in "12")
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], rtol=1e-4, atol=1e-5)
    assert learned(tmp_path / "1")[0]["loss"] == pytest.approx(
        learned(tmp_path / "2")[0]["loss"], rel=1e-5
    )


def test_a_pretraining_run_is_refused_where_a_classifier_is_needed(pretrained):
    with pytest.raises(RunFolderError, match=r"is of pretraining: .* no classifier") as caught:
        read_classifier(pretrained)
    assert "model.name=RUN" in caught.value.hint


def test_a_resume_with_another_task_kind_is_refused(documents, small, pretrained, forked, tmp_path):
    with pytest.raises(
        ConfigError, match=r"complete with task\.kind = pretrain, found single_label"
    ):
        train(small(), pretrained, NullProgress(), resume=True)
    assert forked(documents(), tmp_path / "half", kill_at=6)[0] == -9
    with pytest.raises(ConfigError, match=r"started with task\.kind = 'pretrain', found 'single_l"):
        train(small(), tmp_path / "half", NullProgress(), resume=True)


@pytest.mark.parametrize("where", ["", "/checkpoint"])
def test_fine_tuning_uses_the_weights_and_tokenizer_of_the_pretraining_run(
    pretrained, small, tmp_path, where
):
    small()  # writes rows with labels, and a config
    path = tmp_path / "fine.toml"
    text = (tmp_path / "c.toml").read_text()
    path.write_text(text.replace('preset = "tiny"', f'name = "{pretrained}{where}"'))
    extra = ["train.max_steps=1", "train.learning_rate=1e-9", "train.batch_size=8"]
    config = load_config(str(path), [*extra, "train.report=false", "train.precision=fp32"])
    run = tmp_path / "fine"
    with suppress(CheckFailedError):  # one step teaches nothing
        train(config, run, NullProgress())
    manifest = read_classifier(run)
    assert manifest.input.tokenizer.sha256 == read_manifest(pretrained).input.tokenizer.sha256
    before = load_file(pretrained / "checkpoint" / "model.safetensors")
    after = load_file(run / "checkpoint" / "model.safetensors")
    shared = [name for name in after if name in before]
    assert any("pooler" in name for name in shared)
    assert len(shared) >= len(after) - 2
    for name in shared:
        torch.testing.assert_close(before[name], after[name], rtol=0, atol=1e-6)


def test_a_pretraining_run_can_be_pretrained_further(pretrained, tmp_path):
    path = tmp_path / "more.toml"
    path.write_text(CONFIG.replace('preset = "tiny"', f'name = "{pretrained}"'))
    config = load_config(str(path), [*QUICK, "train.max_steps=2", "train.eval_every=1"])
    train(config, tmp_path / "more", NullProgress())
    first = [line for line in learned(pretrained) if line["group"] == "dev"][-1]
    more = next(line for line in learned(tmp_path / "more") if line["group"] == "dev")
    assert more["masked_loss"] == pytest.approx(first["masked_loss"], rel=0.1)


def test_texts_without_segments_have_no_order_objective(documents, tmp_path):
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"words": f"row {n} has words"}) + "\n" for n in range(90))
    )
    (tmp_path / "p.toml").write_text(
        CONFIG.replace("train.txt", "train.jsonl")
        .replace('format = "documents"\n', "")
        .replace("[model]", 'columns = { text = "words" }\n[model]')
    )
    train(documents(), tmp_path / "run", NullProgress())
    manifest = read_manifest(tmp_path / "run")
    assert manifest.model.head == "masked"
    assert {*manifest.data.metrics["dev"].scores} == {"masked_accuracy"}


def test_the_report_shows_both_objectives(documents, tmp_path):
    train(documents("train.report=true"), tmp_path / "run", NullProgress())
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (
        "masked tokens of dev are predicted correctly",
        "segment orders of dev are predicted correctly",
        "tokens/s",
        "Loss on dev",
    ):
        assert text in page
    assert "linear baseline" not in page


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("train.token_dropout=0.1", "train.token_dropout applies only to classifiers"),
        ("task.kind=single_label", "format documents has no labels: set task.kind to pretrain"),
        ("data.columns.text=0", "format documents has no data.columns"),
        ("task.metric=accuracy", "does not apply to a pretrain task"),
    ],
)
def test_settings_of_classifiers_are_refused(documents, tmp_path, extra, message):
    with pytest.raises(ConfigError, match=message):
        train(documents(extra), tmp_path / "run", NullProgress())
