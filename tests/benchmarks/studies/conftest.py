"""Mark every test of this folder with `study`: `make test` leaves them out."""

from pathlib import Path

import pytest

from pipework.benchmarks.studies.records.stored_results import read_stored

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.study)


@pytest.fixture
def run_study(tmp_path):
    """Return a function that runs the main function of a study and returns its stored result.

    The result is in the file `result.json` of the test's folder.
    """

    def run(main, *words, code=0):
        out = tmp_path / "result.json"
        assert main([*map(str, words), "--out", str(out)]) == code
        return read_stored(out)

    return run
