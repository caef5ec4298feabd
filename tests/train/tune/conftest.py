"""Searches of a few short trials."""

from functools import partial

import pytest

from pipework.train.tune.search_space import SearchSpace

RANGES = (
    "tune.train.learning_rate={ low = 1e-4, high = 1e-2, log = true }",
    "tune.train.batch_size=[4, 8]",
)
SHORT = ("train.max_steps=6", "train.precision=fp32", "train.report=false", "train.eval_every=2")


@pytest.fixture(scope="session")
def search_in(config_in):
    """A function that writes a few synthetic rows into a folder; it returns config and settings."""

    def write(folder, *overrides, trials=3, seeds=2):
        config_in(folder)
        settings = (*SHORT, f"tune.trials={trials}", f"tune.seeds={seeds}", *RANGES, *overrides)
        return (str(folder / "c.toml"), settings)

    return write


@pytest.fixture
def search(search_in, tmp_path):
    """The same function for a folder of the test."""
    return partial(search_in, tmp_path)


@pytest.fixture
def small_space(search):
    """A function that returns the search space of such a search."""

    def load(*overrides, **options):
        config, settings = search(*overrides, **options)
        return SearchSpace.load(config, settings)

    return load
