"""User errors of a script are printed and become its exit code."""

import pytest

from pipework.benchmarks.studies.script import report_errors
from pipework.errors import CheckFailedError


def raising(error):
    @report_errors
    def main():
        raise error

    return main


def test_the_result_of_main_is_returned():
    assert report_errors(lambda code: code)(5) == 5


def test_a_user_error_is_printed_with_its_hint_and_details(capsys):
    error = CheckFailedError("it differs", "rewrite it", "line 1")
    assert raising(error)() == CheckFailedError.exit_code == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: it differs" in printed.err
    assert "line 1" in printed.err
    assert "rewrite it" in printed.err


def test_a_missing_optional_package_is_reported_with_its_install_command(capsys):
    assert raising(ModuleNotFoundError("no module", name="matplotlib"))() == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ModuleNotFoundError("x", name="typo"), ValueError("bug")])
def test_other_exceptions_propagate(error):
    with pytest.raises(type(error)):
        raising(error)()
