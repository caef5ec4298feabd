"""The object store of the tests of bulk jobs."""

import fsspec
import pytest


@pytest.fixture
def store():
    """The object store of this process, empty."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    return memory
