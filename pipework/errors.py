"""The errors a user can meet. Each says what was expected, what was found, and what to do next."""


class PipeError(Exception):
    """An error the user can mend.

    Attributes:
        exit_code: what `pipe` exits with (2: the user can mend it, 3: a check said no).
        http_status: what the server answers with when the error reaches its edge.
        hint: one line that says what to do next, or "".
        details: lines to show under the message, such as a table of what differed, or "".
        told: whether another process of the same job has shown it.
    """

    exit_code: int = 2
    http_status: int = 500
    told: bool = False

    def __init__(self, message: str, hint: str = "", details: str = "") -> None:
        """Keep the one-line message, the hint and the details."""
        super().__init__(message)
        self.hint = hint
        self.details = details


class ConfigError(PipeError):
    """A config file, an override or an option is not what it should be."""


class DataError(PipeError):
    """A row, a column or a data file is not what it should be; the message names file and line."""


class RunFolderError(PipeError):
    """A run folder is missing, unfinished, or does not match its manifest."""


class MissingDependencyError(PipeError):
    """An optional package is absent; the hint is the command that installs it."""

    http_status = 503


class InputError(PipeError):
    """A text or a request is not what it should be."""

    http_status = 422


class TooLargeError(InputError):
    """A request exceeds one of the limits of the server."""

    http_status = 413


class TooBusyError(PipeError):
    """The queue is full: the request was not accepted and may be sent again.

    Attributes:
        retry_after_s: seconds after which the queue should have room.
    """

    http_status = 429

    def __init__(self, message: str, retry_after_s: int) -> None:
        """Keep the message and the time to wait, in whole seconds."""
        super().__init__(message, f"send it again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotReadyError(PipeError):
    """The server is starting, draining, or its engine has died."""

    http_status = 503


class DeadlineError(PipeError):
    """The time that a request was given is over before its answer."""

    http_status = 504


class UnknownModelError(PipeError):
    """A server is asked for a model, or a version of it, that it does not serve."""

    http_status = 404


class CheckFailedError(PipeError):
    """A check said no: parity was not met, nothing was learned, a limit was missed."""

    exit_code = 3


class StoppedError(PipeError):
    """A signal ended a run, which has kept what it needs to go on.

    The exit code is that of a process which the signal killed, 128 more than its number.
    """

    def __init__(self, message: str, hint: str, signal: int) -> None:
        """Keep the message, the hint and the code."""
        super().__init__(message, hint)
        self.exit_code = 128 + signal


EXTRAS = {
    "matplotlib": "bench",
    "onnx": "export",
    "onnxruntime": "cpu",
    "sklearn": "train",
    "tensorboard": "train",
    "torch": "train",
    "transformers": "train",
    "tritonclient": "triton",
}


def in_words(error: Exception) -> PipeError | None:
    """Return an error as one that the user can mend, or None where it is a bug.

    That is an optional package which is absent, and what the system refuses about a file: no such
    folder, no permission, no space.
    """
    package = (getattr(error, "name", None) or "").partition(".")[0]
    match error:
        case PipeError():
            return error
        case ModuleNotFoundError() if package in EXTRAS:
            message = f"this needs {package}, which is not installed"
            return MissingDependencyError(message, f"pip install 'pipework[{EXTRAS[package]}]'")
        case OSError(filename=str() as name, strerror=str() as reason):
            return ConfigError(f"{name}: {reason}", "nothing half-written was taken for whole")
        case _:
            return None
