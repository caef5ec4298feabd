import pytest

from pipework.errors import ConfigError, MissingDependencyError, PipeError, in_words


def test_an_error_in_words_stays_as_it_is():
    error = PipeError("expected this, found that", "do so")
    assert in_words(error) is error


def test_an_absent_package_is_told_with_its_extra():
    found = in_words(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"))
    assert isinstance(found, MissingDependencyError)
    assert (str(found), found.hint) == (
        "this needs torch, which is not installed",
        "pip install 'pipework[train]'",
    )


def test_what_the_system_refuses_is_told_with_its_path():
    found = in_words(PermissionError(13, "Permission denied", "/some/file"))
    assert isinstance(found, ConfigError)
    assert str(found) == "/some/file: Permission denied"


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError(), ModuleNotFoundError("our own", name="pipework.gone"), OSError("odd")],
)
def test_a_bug_stays_a_bug(error):
    assert in_words(error) is None
