"""Searches of a few short trials."""

import pytest

from pipework.train.tune.search_space import SearchSpace

RANGES = (
    "tune.train.learning_rate={ low = 1e-4, high = 1e-2, log = true }",
    "tune.train.batch_size=[4, 8]",
)
SHORT = ("train.max_steps=6", "train.precision=fp32", "train.report=false", "train.eval_every=2")


@pytest.fixture
def search(small, tmp_path):
    """A function that returns the words of `pipe tune` with a few synthetic rows."""

    def words(*overrides, trials=3, seeds=1):
        small()  # writes the rows and c.toml
        settings = (*SHORT, f"tune.trials={trials}", f"tune.seeds={seeds}", *RANGES, *overrides)
        return (str(tmp_path / "c.toml"), settings)

    return words


@pytest.fixture
def small_space(search):
    """A function that returns the search space of such a search."""

    def load(*overrides, **options):
        config, settings = search(*overrides, **options)
        return SearchSpace.load(config, settings)

    return load
