import errno
import pickle
from errno import EACCES

import pytest

from pipework.errors import (
    CheckFailedError,
    ConfigError,
    MissingDependencyError,
    PipeError,
    StoppedError,
    TooBusyError,
    as_pipe_error,
    failure_reason,
    is_transient,
    without_password,
)


def test_a_pipe_error_is_returned_unchanged():
    error = PipeError("expected this, found that", "do so")
    assert as_pipe_error(error) is error


def test_a_missing_package_is_reported_with_its_extra():
    error = as_pipe_error(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"))
    assert isinstance(error, MissingDependencyError)
    assert (str(error), error.hint) == (
        "torch is required and not installed",
        "pip install 'pipework[train]'",
    )


def test_a_file_error_is_reported_with_its_path():
    error = as_pipe_error(PermissionError(13, "Permission denied", "/some/file"))
    assert isinstance(error, ConfigError)
    assert str(error) == "/some/file: Permission denied"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "source", None, "target"), "target: No space left"),
        (RuntimeError("I/O error (os error 28)"), "a file cannot be written: no space left"),
    ],
)
def test_a_full_disk_is_reported(error, message):
    found = as_pipe_error(error)
    assert isinstance(found, ConfigError)
    assert str(found).startswith(message)
    assert found.hint == "free space on the disk"


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError(), ModuleNotFoundError("our own", name="pipework.gone"), OSError("odd")],
)
def test_a_bug_is_not_converted(error):
    assert as_pipe_error(error) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hub.example/team", "https://hub.example/team"),
        ("https://user:secret@hub.example/team", "https://***@hub.example/team"),
        ("http://user:se@cret space@[::1", "http://***@[::1"),
        ("simplecache::s3://user:secret@bucket/a", "simplecache::s3://***@bucket/a"),
        ("s3://bucket/rows@2.csv?at=a@b", "s3://bucket/rows@2.csv?at=a@b"),
        ("rows@2.csv", "rows@2.csv"),
    ],
)
def test_a_url_is_printed_without_its_password(url, expected):
    assert without_password(url) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(EACCES, "no permission", "/path"), "no permission"),
        (RuntimeError("first\nsecond"), "first"),
        (RuntimeError("invalid:\nname of the bucket\nthird"), "invalid: name of the bucket"),
        (RuntimeError("http://user:secret@host failed"), "http://***@host failed"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_reason_of_an_error_is_one_line(error, expected):
    assert failure_reason(error) == expected


@pytest.mark.parametrize(
    "error",
    [
        TooBusyError("full", 3),
        StoppedError("stopped", "run it again", 15),
        CheckFailedError("differs", "see the report", "a table"),
    ],
)
def test_an_error_is_pickled_with_its_attributes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def of_package(*names):
    """An error with such classes of a package for object stores, the base first."""
    kind = Exception
    for name in names:
        kind = type(name, (kind,), {"__module__": "botocore.exceptions"})
    return kind()


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EBUSY, "Slow Down"), True),
        (of_package("ConnectionError", "EndpointConnectionError"), True),
        (of_package("BotoCoreError", "ParamValidationError"), False),
        (PermissionError(errno.EACCES, "Access Denied"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (ValueError("x"), False),
    ],
)
def test_errors_that_may_be_over_later_are_known(error, transient):
    assert is_transient(error) is transient
