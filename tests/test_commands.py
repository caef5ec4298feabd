"""Commands of tests run in forks of a process without threads."""

import gc
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

from tests.commands import ForkedPipe, ForkedProcess, start_fork_server


def print_threads_of_parent():
    print(f"{len(os.listdir(f'/proc/{os.getppid()}/task'))} threads")  # noqa: PTH208, T201


def test_a_command_is_a_fork_of_a_process_without_threads():
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    with ForkedPipe("--help", before=print_threads_of_parent) as process:
        done = process.finish()
    ended.set()
    thread.join()
    assert done.stdout.startswith("1 threads\n"), done
    assert done.returncode == 0


def test_a_command_has_the_folder_and_the_variables_of_its_test(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    with ForkedPipe("--help", before=print_surroundings, LINES="7") as process:
        done = process.finish()
    assert done.stdout.startswith(f"{tmp_path} 100 7\n"), done


def print_surroundings():
    print(Path.cwd(), os.environ["COLUMNS"], os.environ["LINES"])  # noqa: T201


def print_line():
    print("ready", flush=True)  # noqa: T201
    print("more", end="")  # noqa: T201


def print_state():
    with warnings.catch_warnings(record=True) as messages:
        for category in (DeprecationWarning, ResourceWarning, UserWarning):
            warnings.warn("of a category", category, stacklevel=1)
    finders = [type(finder).__module__ for finder in sys.meta_path]
    finders = [name for name in finders if "pytest" in name]
    print([one.category.__name__ for one in messages], finders, gc.isenabled())  # noqa: T201


def test_a_command_has_the_defaults_of_python():
    with ForkedPipe("--help", before=print_state) as process:
        done = process.finish()
    assert done.stdout.startswith("['UserWarning'] [] True\n"), done


def test_the_first_line_is_returned_as_soon_as_it_is_complete():
    with ForkedProcess(time.sleep, 60) as silent, ForkedProcess(print_line) as process:
        assert process.first_line() == "ready"
        assert process.finish().stdout == "ready\nmore"
        silent.send_signal(signal.SIGTERM)
        assert silent.first_line() == ""
        assert silent.wait() == -signal.SIGTERM


MARK = Path()


def print_mark():
    print(MARK)  # noqa: T201


def fork_with_mark(mark):
    global MARK  # noqa: PLW0603
    MARK = mark
    start_fork_server()
    with ForkedProcess(print_mark) as process:
        print(process.finish().stdout, end="")  # noqa: T201


def test_a_fork_server_can_share_the_imports_of_its_process(tmp_path):
    with ForkedProcess(fork_with_mark, tmp_path) as process:
        done = process.finish()
    assert done.stdout == f"{tmp_path}\n", done
