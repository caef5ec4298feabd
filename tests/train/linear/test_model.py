"""The sizes of linear models."""

import pytest

from pipework.errors import ConfigError
from pipework.train.linear import model as linear
from tests.train.learning import score


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"ROWS": 40}, 40), ({"FITS": 60, "FEWEST_ROWS": 10}, 30), ({"TOKENS": 200}, 28)],
)
def test_rows_are_sampled_to_limit_the_time(fitted, topics, monkeypatch, limits, expected):
    for name, value in limits.items():
        monkeypatch.setattr(linear, name, value)
    rows = (fitted(topics) / "log.jsonl").read_text()
    assert f'"rows": {expected}' in rows


def test_a_table_has_as_many_buckets_as_fit(fitted, topics, monkeypatch):
    monkeypatch.setattr(linear, "TABLE", 3 * 20_000)
    run = fitted(topics)
    assert '"buckets": 16384' in (run / "checkpoint" / "config.json").read_text()
    assert score(run) == 1
    monkeypatch.setattr(linear, "TABLE", 3 * 4_000)
    with pytest.raises(ConfigError, match=r"n-grams times 2 labels is above 12,000"):
        fitted(topics)
