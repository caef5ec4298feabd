"""`pipe` in the process of the tests or in a fork, which saves seconds of imports.

A fork of a process with threads can block forever on a lock that a thread held. The forks are
therefore made by a fork server: a process that only imports modules, none of which starts a thread.
"""

import gc
import importlib
import io
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn, Self
from unittest.mock import patch

from pipework.cli import main

TIMEOUT_S = 180
FORKS = multiprocessing.get_context("forkserver")
# What commands import, without onnxruntime and OpenVINO, whose imports start threads.
PRELOADED = [
    "pipework.benchmarks.run",
    "pipework.console",
    "pipework.export.predict",
    "pipework.export.ranking",
    "pipework.serve.run",
    "pipework.terminal",
    "pipework.train.run",
    "sklearn.feature_extraction.text",
    "sklearn.svm",
    "tests.commands",
    "transformers.models.bert.modeling_bert",
]
FORKS.set_forkserver_preload(PRELOADED)
IGNORED_WARNINGS = (  # by default
    DeprecationWarning,
    ImportWarning,
    PendingDeprecationWarning,
    ResourceWarning,
)


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


def start_fork_server() -> None:
    """Start the fork server as a fork of this process, which saves the time of its imports.

    Must be called before this process imports a module that starts a thread.
    """
    resource_tracker.ensure_running()
    with _default_warnings(), patch.object(util, "spawnv_passfds", _fork_server):
        for name in PRELOADED:
            importlib.import_module(name)
        forkserver.ensure_running()


def _fork_server(_program: bytes, arguments: Sequence[str], fds: Sequence[int]) -> int:
    """Run the program of the fork server in a fork; replaces `spawnv_passfds`."""
    pid = os.fork()
    if pid == 0:
        _run_program(arguments[-1], fds)
    return pid


def _run_program(program: str, fds: Sequence[int]) -> NoReturn:
    """Run a Python program without the state, files and output of the forked process, and end."""
    try:
        gc.enable()
        # The finder of pytest rewrites the assertions of each imported test module.
        sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__[:7] != "_pytest"]
        forkserver._forkserver.__init__()  # noqa: SLF001  (its lock is held in the forked process)
        for fd in map(int, os.listdir("/dev/fd")):  # noqa: PTH208
            if fd > 2 and fd not in fds:
                with suppress(OSError):  # the descriptor of this listing is closed
                    os.close(fd)
        _redirect([Path(os.devnull)] * 2)
        exec(program)
    finally:
        os._exit(0)


@contextmanager
def _default_warnings() -> Iterator[None]:
    """Set the filters of warnings that Python starts with."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in IGNORED_WARNINGS:
            warnings.simplefilter("ignore", category)
        yield


def fork(target: Callable[..., object], *arguments: object, **environment: str) -> BaseProcess:
    """Return a process, not started, that calls a function in a fork of the fork server.

    Function and arguments are pickled.
    """
    variables = {**os.environ, **environment}
    return FORKS.Process(target=_call, args=(variables, target, arguments))


class ForkedProcess:
    """A function in a fork, which can be signalled like the command of a shell.

    Function and arguments are pickled. The output is stored in files.
    """

    def __init__(
        self, target: Callable[..., object], *arguments: object, **environment: str
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        self._process = fork(_with_outputs, self._outputs, target, arguments, **environment)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.join()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self._process.kill()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.exitcode

    def first_line(self, timeout_s: float = TIMEOUT_S) -> str:
        """Wait for the first line of standard output; return "" if the process ends before."""
        end_s, found = time.monotonic() + timeout_s, ""
        while not found:
            ended = self.poll() is not None
            line, found, _ = self._text(0).partition("\n")
            if ended and not found:
                return ""
            assert time.monotonic() < end_s, f"it printed no line in {timeout_s} s"
            time.sleep(0.005)
        return line

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the end of the process and return its exit code."""
        self._process.join(timeout_s)
        code = self.poll()
        assert code is not None, f"it did not end in {timeout_s} s"
        return code

    def finish(self, timeout_s: float = TIMEOUT_S) -> FinishedCommand:
        """Wait for the end of the process."""
        code = self.wait(timeout_s)
        return FinishedCommand(returncode=code, stdout=self._text(0), stderr=self._text(1))

    def _text(self, output: int) -> str:
        path = self._outputs[output]
        return path.read_text(encoding="utf-8") if path.exists() else ""


class ForkedPipe(ForkedProcess):
    """A command in a fork; `before` is called in the fork before the command."""

    def __init__(
        self, *words: object, before: Callable[[], object] | None = None, **environment: str
    ) -> None:
        super().__init__(_run, ["pipe", *map(str, words)], before, **environment)


def fork_pipe(*words: object) -> FinishedCommand:
    """Run a command in a fork."""
    with ForkedPipe(*words) as process:
        return process.finish()


@contextmanager
def served(*words: object) -> Iterator[tuple[str, str]]:
    """Run `pipe serve` with free ports in a fork; return the URL, and gRPC's HOST:PORT."""
    with ForkedPipe("serve", *words, "--port", "0", "--grpc-port", "0") as process:
        line = process.first_line()
        addresses = re.fullmatch(r"serving on (http://\S+) and gRPC on (\S+)", line)
        if addresses is None:
            process.kill()
        assert addresses, process.finish()
        yield addresses[1], addresses[2]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def rank_environments(processes: int) -> list[dict[str, str]]:
    """Return the variables of the processes of one training job."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{processes}"}
    return [{**job, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(processes)]


def fork_ranks(*words: object, processes: int = 2) -> list[FinishedCommand]:
    """Run a command in the processes of one job, without the launcher."""
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(ForkedPipe(*words, **environment))
            for environment in rank_environments(processes)
        ]
        return [rank.finish() for rank in ranks]


def _call(
    environment: Mapping[str, str], target: Callable[..., object], arguments: Sequence[object]
) -> None:
    gc.freeze()  # a collection that searches all imported modules takes seconds
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


def _with_outputs(
    outputs: Sequence[Path], target: Callable[..., object], arguments: Sequence[object]
) -> None:
    _redirect(outputs)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2)
    )
    target(*arguments)


def _redirect(outputs: Sequence[Path]) -> None:
    """Replace the input of this process by nothing, and its outputs by files."""
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in enumerate(outputs, 1):
        with path.open("w") as file:
            os.dup2(file.fileno(), number)


def _run(argv: Sequence[str], before: Callable[[], object] | None) -> None:
    sys.argv = [*argv]
    if before is not None:
        before()
    main()
