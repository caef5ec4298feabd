"""`pipe` in the process of the tests or in a fork of it, which saves seconds of imports."""

import io
import multiprocessing
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self
from unittest.mock import patch

from pipework.cli import main

TIMEOUT_S = 180


@dataclass(frozen=True, kw_only=True)
class FinishedCommand:
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


def pipe(*words: object, stdin: bytes = b"") -> FinishedCommand:
    """Run a command in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["pipe", *map(str, words)]
    lines = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with (
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", lines),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 1
    return FinishedCommand(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


class ForkedPipe:
    """A command in a fork of this process, which can be signalled like the command of a shell.

    It does not suit gRPC and OpenVINO, whose threads a fork lacks. `before` is called in the fork
    before the command.
    """

    def __init__(
        self, *words: object, before: Callable[[], object] | None = None, **environment: str
    ) -> None:
        import pipework.export.run  # noqa: PLC0415
        import pipework.train.run  # noqa: F401, PLC0415  (once, for all forks)

        self._files = [
            tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (__exit__ closes it)
            for _ in range(2)
        ]
        arguments = (["pipe", *map(str, words)], environment, self._files, before)
        self._process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
            self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        for file in self._files:
            file.close()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        return self._process.exitcode

    def finish(self, timeout_s: float = TIMEOUT_S) -> FinishedCommand:
        """Wait for the end of the command."""
        self._process.join(timeout_s)
        code = self.poll()
        assert code is not None, f"it did not end in {timeout_s} s"
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
        return FinishedCommand(returncode=code, stdout=texts[0], stderr=texts[1])


def fork_pipe(*words: object) -> FinishedCommand:
    """Run a command in a fork."""
    with ForkedPipe(*words) as process:
        return process.finish()


def fork_ranks(*words: object, processes: int = 2) -> list[FinishedCommand]:
    """Run a command in the processes of one job, without the launcher."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{processes}"}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(ForkedPipe(*words, RANK=f"{rank}", LOCAL_RANK=f"{rank}", **job))
            for rank in range(processes)
        ]
        return [rank.finish() for rank in ranks]


def _run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[IO[str]],
    before: Callable[[], object] | None,
) -> None:
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = [*argv]
    os.environ.update(environment)
    if before is not None:
        before()
    main()
