"""The workers of a server exchange whether several clients use a queue."""

import os
import time
from pathlib import Path

import pytest

from pipework.errors import TooBusyError
from pipework.serve.config import QueueSettings
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import RequestOptions
from pipework.serve.scheduling.admission import ClientShareError
from pipework.serve.workers.group import SNAPSHOT_S, WorkerFolder, WorkerGroup


def group(files: WorkerFolder, number: int, models: Models) -> WorkerGroup:
    return WorkerGroup(files, number, models, Observers(models), frozenset(), lambda: None)


def test_a_worker_delays_a_client_while_others_use_another_worker(
    exported_run: Path, tmp_path: Path
) -> None:
    files = WorkerFolder(folder=tmp_path, workers=2)
    greedy, polite = RequestOptions(client="greedy"), RequestOptions(client="polite")
    settings = QueueSettings(requests=2)
    first, second = (Models([open_predictor(exported_run, queue=settings)]) for _ in range(2))
    with first, second:
        groups = [group(files, number, models) for number, models in enumerate((first, second))]
        queues = [models.serving()[0].scheduler for models in (first, second)]

        def refusal() -> type[TooBusyError]:
            for one in groups:
                one.exchange_sharing()
            with pytest.raises(TooBusyError) as caught:
                queues[0].check_room(greedy)
            return type(caught.value)

        for queue, options in ((queues[0], greedy), (queues[0], greedy), (queues[1], greedy)):
            queue.reserve(options)
        assert refusal() is TooBusyError
        queues[1].reserve(polite)
        refusal()  # the first worker reads the note of the second the next time
        assert refusal() is ClientShareError
        for queue, options in ((queues[0], [greedy] * 2), (queues[1], [greedy, polite])):
            queue.enqueue([], dropped=options)


def test_an_old_note_is_forgotten(tmp_path: Path) -> None:
    files = WorkerFolder(folder=tmp_path, workers=2)
    assert not files.is_shared()
    files.note_sharing()
    assert files.is_shared()
    before_s = time.time() - 2 * SNAPSHOT_S
    os.utime(tmp_path / "shared", (before_s, before_s))
    assert not files.is_shared()
    WorkerFolder(folder=tmp_path / "deleted", workers=2).note_sharing()
