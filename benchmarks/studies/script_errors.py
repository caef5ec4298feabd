"""Error handling shared by the command-line programs of the studies."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from pipework import console
from pipework.errors import PipeError, as_pipe_error

P = ParamSpec("P")


def report_errors(main: Callable[P, int]) -> Callable[P, int]:
    """Wrap a `main` function: print user errors with their hint to stderr, return their exit code.

    User errors are PipeError and missing optional packages. All other exceptions propagate.
    """

    @wraps(main)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (PipeError, ModuleNotFoundError) as error:
            user_error = as_pipe_error(error)
            if user_error is None:
                raise
            console.print_error(user_error)
            return user_error.exit_code

    return wrapper
