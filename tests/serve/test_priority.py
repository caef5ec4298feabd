import os
import threading

from serve.priority import NICE, step_back


def test_a_thread_steps_back_alone() -> None:
    found: list[int] = []

    def work() -> None:
        step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread.start()
    thread.join()
    assert found == [NICE]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
