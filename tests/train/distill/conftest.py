"""A teacher, trained once for all tests."""

import shutil

import pytest

from pipework.progress import NullProgress
from pipework.train.run import train


@pytest.fixture(scope="session")
def trained_teacher(config_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    train(config_in(folder, "train.max_steps=60"), folder / "teacher", NullProgress())
    return folder / "teacher"


@pytest.fixture
def teacher(trained_teacher, tmp_path):
    """A copy of the teacher, to be changed."""
    return shutil.copytree(trained_teacher, tmp_path / "teacher")
