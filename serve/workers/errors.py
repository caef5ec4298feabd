"""Errors that one process of a server reports to another."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from pipework.errors import PipeError


class ErrorContent(BaseModel):
    """An error as JSON.

    Attributes:
        kind: class of a PipeError; empty for other errors.
        message: its message; empty if there is no error.
        state: its attributes.
    """

    model_config = ConfigDict(frozen=True)

    kind: str = ""
    message: str = ""
    state: dict[str, Any] = {}

    @classmethod
    def of(cls, error: BaseException | None) -> "ErrorContent":
        """Return the content of an error."""
        if error is None:
            return cls()
        if not isinstance(error, PipeError):
            return cls(message=repr(error))
        return cls(kind=type(error).__name__, message=str(error), state=vars(error))

    def error(self) -> Exception | None:
        """Return the error: a PipeError of the same class, a RuntimeError, or None."""
        kind = _error_classes(PipeError).get(self.kind)
        if kind is None:
            return RuntimeError(self.message) if self.message else None
        error = kind.__new__(kind, self.message)
        vars(error).update(self.state)
        return error


def _error_classes(base: type[PipeError]) -> dict[str, type[PipeError]]:
    classes = {base.__name__: base}
    for subclass in base.__subclasses__():
        classes |= _error_classes(subclass)
    return classes
