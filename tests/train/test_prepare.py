"""Unusable data are reported before the first step."""

import pytest

from pipework.errors import ConfigError, DataError
from pipework.progress import NullProgress
from pipework.train.run import train


def test_a_test_label_that_train_lacks_is_reported_before_the_training(small, tmp_path):
    config = small()
    with (tmp_path / "test.tsv").open("a") as stream:
        stream.write("odd thing\t2\n")
    message = r"test\.tsv:10 has label '2', which the model lacks"
    with pytest.raises(DataError, match=message) as caught:
        train(config, tmp_path / "run", NullProgress())
    out = 'add it to task.labels, or leave it out: data.no_label = ["2"]'
    assert caught.value.hint == f"known labels: 0, 1; {out}"
    assert not (tmp_path / "run").exists()


def test_equal_targets_of_a_regression_are_refused(small, tmp_path):
    config = small("task.kind=regression")
    path = config.sources()["train"].path
    path.write_text("text\tlabel\n" + "row\t2.50\n" * 20)
    with pytest.raises(ConfigError, match=r"different targets in train, found 2\.5 in"):
        train(config, tmp_path / "run", NullProgress())
