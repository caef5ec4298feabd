"""Checks of teachers, and the cache of their logits."""

import numpy as np
import pytest
import torch

from pipework.errors import CheckFailedError, ConfigError, RunFolderError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.text.encoding import open_encoder
from pipework.train.data.batches import BATCH_TOKENS
from pipework.train.data.disk_cache import cache_folder
from pipework.train.distill import teacher as module
from pipework.train.distill.teacher import open_teachers, teacher_logits
from pipework.train.model.checkpoint_engine import open_reference
from tests.train.counted_progress import CountedProgress

TASK = SingleLabelTask(labels=("0", "1"), metric=Metric.ACCURACY)
CPU = torch.device("cpu")


@pytest.fixture
def teacher_and_source(small, teacher, tmp_path, monkeypatch):
    """A teacher trained on synthetic rows, and its train source, with an empty cache."""
    monkeypatch.setenv("PIPEWORK_CACHE", str(tmp_path / "cache"))
    (opened,) = open_teachers([teacher], TASK, ("text",))
    return opened, small().sources()["train"]


def test_teacher_logits_are_those_of_its_checkpoint_in_row_order(teacher_and_source):
    teacher, source = teacher_and_source
    logits_NC = teacher_logits(teacher, source, CPU, NullProgress())
    examples = list(source.rows())
    with open_reference(teacher.run, teacher.manifest) as engine:
        expected_NC = engine.infer(
            open_encoder(teacher.run, teacher.manifest).encode(examples)
        ).values
    np.testing.assert_allclose(logits_NC, expected_NC, atol=0.05)  # the cache may be in bf16
    truth_N = np.array([int(example.label) for example in examples])
    assert (logits_NC.argmax(axis=1) == truth_N).mean() > 0.9


def test_teacher_logits_are_computed_once(teacher_and_source, monkeypatch):
    teacher, source = teacher_and_source
    first_NC = np.array(teacher_logits(teacher, source, CPU, NullProgress()))
    monkeypatch.setattr(module, "open_reference", None)
    np.testing.assert_array_equal(teacher_logits(teacher, source, CPU, NullProgress()), first_NC)


def test_an_interrupted_computation_continues_with_the_missing_rows(
    teacher_and_source, monkeypatch
):
    teacher, source = teacher_and_source
    monkeypatch.setattr(module, "BATCH_TOKENS", 40)
    whole_NC = np.array(teacher_logits(teacher, source, CPU, NullProgress()))
    for path in cache_folder().glob(f"*/{module.LOGITS}"):
        path.unlink()
        (path.parent / module.COMPLETE).unlink()
    with pytest.raises(KeyboardInterrupt):
        teacher_logits(teacher, source, CPU, CountedProgress(most=25))
    np.testing.assert_array_equal(
        teacher_logits(teacher, source, CPU, rest := CountedProgress()), whole_NC
    )
    assert 0 < rest.done <= len(whole_NC) - 25
    assert BATCH_TOKENS > 40


def test_a_logit_that_is_not_finite_is_reported(teacher_and_source, monkeypatch):
    teacher, source = teacher_and_source
    real = module.CheckpointEngine.infer
    monkeypatch.setattr(
        module.CheckpointEngine,
        "infer",
        lambda engine, rows: Outputs.of(real(engine, rows).values * np.nan),
    )
    with pytest.raises(CheckFailedError, match="a logit of the teacher is not finite"):
        teacher_logits(teacher, source, CPU, NullProgress())


def test_another_order_of_labels_is_refused(run):
    manifest = read_manifest(run)
    labels = manifest.task.labels
    swapped = (*labels[:2], labels[3], labels[2], *labels[4:])
    task = manifest.task.model_copy(update={"labels": swapped})
    expected = f"has '{labels[2]}' as label 2, this run has '{labels[3]}'"
    with pytest.raises(ConfigError, match=expected):
        open_teachers([run], task, ("text",))
    task = manifest.task.model_copy(update={"labels": (*labels, "more")})
    with pytest.raises(ConfigError, match=f"has none as label {len(labels)}, this run has 'more'"):
        open_teachers([run], task, ("text",))


def test_another_task_or_other_fields_are_refused(run):
    task = read_manifest(run).task
    other = task.model_copy(update={"kind": "multi_label"})
    with pytest.raises(
        ConfigError, match=r"has task\.kind = single_label, this run has multi_label"
    ):
        open_teachers([run], other, ("text",))
    with pytest.raises(ConfigError, match="reads text, this run reads text and text_pair"):
        open_teachers([run], task, ("text", "text_pair"))


def test_a_folder_of_seeds_is_expanded_to_its_runs(run, tmp_path):
    task = read_manifest(run).task
    (tmp_path / "several").mkdir()
    for seed in (1, 2):
        (tmp_path / "several" / f"seed-{seed}").symlink_to(run)
    teachers = open_teachers([tmp_path / "several", run], task, ("text",))
    assert [teacher.name for teacher in teachers] == ["several/seed-1", "several/seed-2", "run"]
    with pytest.raises(RunFolderError, match=r"holds no manifest\.json"):
        open_teachers([tmp_path], task, ("text",))
