"""Ends a process whose engine is stuck in a batch, or whose GPU is lost.

No other thread can stop the computation, and no other engine can use the GPU.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipework.serve.models.registry import Models
from pipework.serve.scheduling.predictor import Predictor

log = logging.getLogger(__name__)
POLL_S = 0.25
# A longer interval between two polls: the process was stopped, and its engines too.
STOPPED_S = 4 * POLL_S
# Of the limit of a batch: after it the server is not ready, and clients can use others until then.
ENDS = 2
EXIT_CODE = 1


@contextmanager
def watchdog(models: Models) -> Iterator[None]:
    """End the process when the batch of an engine takes too long, or its GPU is lost.

    A supervisor, a service manager or Kubernetes starts another one.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(models, ended), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(models: Models, ended: threading.Event) -> None:
    resumed_s = polled_s = time.monotonic()
    while not ended.wait(POLL_S):
        now_s = time.monotonic()
        if now_s - polled_s > STOPPED_S:
            resumed_s = now_s
        polled_s = now_s
        for model in (*models.serving(), *models.leases.draining()):
            end_if_stuck(model, resumed_s)


def end_if_stuck(model: Predictor, resumed_s: float) -> None:
    """End the process if its GPU is lost, or a batch takes too long.

    The time before `resumed_s` does not count.
    """
    if lost := model.scheduler.lost_gpu:
        _end("the GPU of %s %s is lost: %s; the process ends", model.name, model.version, lost)
    oldest = model.scheduler.oldest_batch
    if oldest is None:
        return
    seconds = time.monotonic() - max(oldest.started_s, resumed_s)
    if seconds > ENDS * oldest.limit_s:
        _end(
            "the engine of %s %s is stuck: a batch has taken %.1f s, expected at most %.1f s "
            "(queue.stuck_s); the process ends",
            *(model.name, model.version, seconds, oldest.limit_s),
        )


def _end(message: str, *values: object) -> None:
    log.error(message, *values)
    logging.shutdown()
    os._exit(EXIT_CODE)
