"""The steps of the study from scratch have valid configs."""

from pathlib import Path

import tomli_w

from pipework.benchmarks.studies.scratch import (
    DISTILLED,
    NONE_DISTILLED,
    PRETRAINED,
    PRETRAINING,
    SMALL_DISTILLED,
    trainings,
)
from pipework.train.config.run_config import load_config


def loaded(training, folder):
    path = folder / "c.toml"
    path.write_text(tomli_w.dumps(training.sections(1)))
    return load_config(str(path), [])


def test_configs_are_valid_and_pretraining_does_not_read_test_rows(tmp_path):
    steps = trainings(tmp_path, tmp_path / "work", (1, 2, 3))
    for step in steps:
        config = loaded(step, tmp_path)
        read = {Path(config.data.train).name, config.data.dev and config.data.dev.name}
        if step.name == PRETRAINING:
            assert read == {"train_45000.txt", None}
            assert config.data.test is None


def test_each_step_depends_only_on_earlier_steps(tmp_path):
    steps = trainings(tmp_path, tmp_path / "work", (1, 2, 3))
    done = set()
    for step in steps:
        assert done.issuperset(step.after)
        assert step.against is None or step.against in done
        done.add(step.name)
    by_name = {step.name: step for step in steps}
    for name in (DISTILLED, SMALL_DISTILLED, NONE_DISTILLED):
        (run,) = loaded(by_name[name], tmp_path).train.teacher
        assert run == tmp_path / "work" / PRETRAINED
