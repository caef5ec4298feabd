"""How many requests a second the generator itself can send, whatever the server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import Target, Wire
from pipework.errors import NotReadyError
from pipework.progress import Progress

CLIENTS = 16
WARMUP_S, DURATION_S = 0.2, 1.0
STOP_S = 10.0


def generator_limit(
    target: Target, workload: Workload, *, answer_bytes: int, progress: Progress
) -> float | None:
    """Return the requests a second that 16 clients get answered by something that answers at once.

    None for gRPC, for which there is no such thing here.

    It is a process beside this one that answers as many bytes as the server does, so requests are
    made, sent, carried and read as they will be; only nothing is computed.

    Raises:
        NotReadyError: it did not start.
    """
    if target.wire is Wire.GRPC:
        return None
    with _responder(answer_bytes) as port:
        level = closed_loop(
            target.beside(port),
            workload,
            concurrency=CLIENTS,
            duration_s=DURATION_S,
            warmup_s=WARMUP_S,
            limit_s=DURATION_S,
            progress=progress,
        )
    return round(level.requests_per_s, 1)


@contextmanager
def _responder(answer_bytes: int) -> Iterator[int]:
    command = [sys.executable, "-P", "-m", "pipework.benchmarks.load.responder", f"{answer_bytes}"]
    with subprocess.Popen(  # noqa: S603  (our own program)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                message = "what measures the generator's limit did not start"
                raise NotReadyError(message)
            yield int(line)
        finally:
            process.kill()
            process.wait(STOP_S)
