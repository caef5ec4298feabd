"""The entry point of the `pipe` command."""

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Let signals end the process, then run the command line."""
    if os.getpid() == 1:
        # The kernel drops signals to the first process of a container that it has no handler for.
        # Commands with handlers of their own replace these.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _exit)
    from pipework.cli import main as run_command  # noqa: PLC0415  (after the handlers)

    run_command()


def _exit(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
