"""Errors that a user can fix: each has a message, a hint, an exit code and an HTTP status."""

import errno
import re

# Errors of a write, which have no file name: no space, a quota, a size limit.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Errors of networks and disks that may be over when the command is repeated.
TRANSIENT = FULL | {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.ENETUNREACH,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
# Errors of the network of these packages are not always those of Python.
NETWORK_PACKAGES = frozenset({"aiohttp", "botocore", "requests", "urllib3"})
NETWORK_ERRORS = frozenset(
    {"ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPClientError"}
)
# The extra of pipework that installs each optional package.
EXTRAS = {
    "cleanlab": "labels",
    "fsspec": "bulk",
    "gcsfs": "gcs",
    "huggingface_hub": "hub",
    "matplotlib": "bench",
    "mlflow": "mlflow",
    "pandas": "mlflow",
    "optuna": "tune",
    "peft": "adapters",
    "onnx": "export",
    "onnxruntime": "cpu",
    "openvino": "cpu",
    "psutil": "bench",
    "pyarrow": "bulk",
    "s3fs": "s3",
    "scipy": "bench",
    "sklearn": "train",
    "tensorboard": "train",
    "torch": "train",
    "transformers": "train",
    "tritonclient": "triton",
}


class PipeError(Exception):
    """An error that the user can fix.

    Attributes:
        exit_code: exit code of `pipe` (2: the user can fix it, 3: a check failed).
        http_status: status code of the server's response.
        hint: one line with the next step, or "".
        details: lines to print below the message, such as a table of differences, or "".
        reported: whether it needs no message: another process of the same job has printed it, or
            nobody reads the output.
    """

    exit_code: int = 2
    http_status: int = 500
    reported: bool = False

    def __init__(self, message: str, hint: str = "", details: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details

    @property
    def with_hint(self) -> str:
        """The message and the hint in one line."""
        return f"{self}; {self.hint}" if self.hint else str(self)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes; subclasses have other arguments."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[PipeError], args: tuple[object, ...], attributes: dict[str, object]
) -> PipeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigError(PipeError):
    """A config file, an override or an option is invalid."""


class OutputError(PipeError):
    """Standard output cannot be written."""


class TransientError(PipeError):
    """A store, a network or a full disk has failed: the same command may succeed later.

    The exit code is EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75


class DataError(PipeError):
    """A row, a column or a data file is invalid; the message names file and line."""


class RunFolderError(PipeError):
    """A run folder is missing, unfinished, or does not match its manifest."""


class ChangedFileError(RunFolderError):
    """A file of a run folder is missing or differs from the digest in the manifest."""

    exit_code = 3


class MissingDependencyError(PipeError):
    """An optional package is not installed; the hint is the command that installs it."""

    http_status = 503


class InputError(PipeError):
    """A text or a request is invalid."""

    http_status = 422


class TooLargeError(InputError):
    """A request exceeds a limit of the server."""

    http_status = 413


class TooBusyError(PipeError):
    """The queue is full: the request was rejected and may be retried.

    Attributes:
        retry_after_s: seconds after which the queue should have room.
    """

    http_status = 429

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, f"send it again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotReadyError(PipeError):
    """The server is starting or draining, or its engine has crashed."""

    http_status = 503


class DeadlineError(PipeError):
    """A request timed out."""

    http_status = 504


class UnknownModelError(PipeError):
    """The server does not serve the requested model or version."""

    http_status = 404


class CheckFailedError(PipeError):
    """A check failed: parity, a model that is not better than a constant, or a missed limit."""

    exit_code = 3


class StoppedError(PipeError):
    """A signal ended a run, which can be resumed.

    The exit code is 128 plus the signal number, as for a process that the signal killed.
    """

    def __init__(self, message: str, hint: str, signal: int) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signal


def without_password(url: str) -> str:
    """Return a URL or path for a message: `***` replaces a user and password."""
    return re.sub(r"^([^/?#]*//)[^/?#]*@", r"\1***@", url)


def failure_reason(error: Exception) -> str:
    """Return the reason of an error of another package in one line, without a password."""
    text = str(getattr(error, "strerror", None) or error)
    lines = text.replace(":\n", ": ").splitlines()
    return without_password(lines[0]) if lines else type(error).__name__


def as_pipe_error(error: Exception) -> PipeError | None:
    """Convert an error that the user can fix to a PipeError; return None for a bug.

    Converted are missing optional packages and file errors of the operating system, such as a
    missing folder, a missing permission or a full disk.
    """
    package = (getattr(error, "name", None) or "").partition(".")[0]
    match error:
        case PipeError():
            return error
        case ModuleNotFoundError() if package in EXTRAS:
            message = f"{package} is required and not installed"
            return MissingDependencyError(message, f"pip install 'pipework[{EXTRAS[package]}]'")
        case OSError(filename=str() as name, strerror=str() as reason):
            full = error.errno in FULL
            if full and isinstance(error.filename2, str):
                name = error.filename2  # the target of a copy
            hint = "free space on the disk" if full else "check the path and its permissions"
            return ConfigError(f"{name}: {reason}", hint)
        case OSError(errno=number, strerror=str() as reason) if number in FULL:
            return ConfigError(f"a file cannot be written: {reason}", "free space on the disk")
        case _ if f"(os error {errno.ENOSPC})" in str(error):  # of a library in Rust
            return ConfigError("a file cannot be written: no space left", "free space on the disk")
        case _:
            return None


def is_transient(error: Exception) -> bool:
    """Return whether an error of a disk, a store or a network may be over later."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if getattr(error, "errno", None) is not None:
        return isinstance(error, OSError) and error.errno in TRANSIENT
    return any(
        kind.__name__ in NETWORK_ERRORS and kind.__module__.partition(".")[0] in NETWORK_PACKAGES
        for kind in type(error).__mro__
    )
