"""Measurement of the maximum request rate of the load generator."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.loops import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import Target, WireProtocol
from pipework.errors import NotReadyError
from pipework.progress import Progress

CLIENTS = 16
DURATION = LevelDuration(warmup_s=0.2, duration_s=1.0, limit_s=1.0)
STOP_S = 10.0


def generator_limit(
    target: Target, workload: Workload, *, response_bytes: int, progress: Progress
) -> float | None:
    """Return the maximum rate of the load generator in requests/s, None for gRPC.

    Measured with 16 clients and a local responder process that does no work and sends responses of
    `response_bytes` bytes, as many as the server. There is no such responder for gRPC.

    Raises:
        NotReadyError: the responder did not start.
    """
    if target.wire_protocol is WireProtocol.GRPC:
        return None
    spec = LoadSpec(workload=workload, load=OfferedLoad(concurrency=CLIENTS), duration=DURATION)
    with _responder(response_bytes) as port:
        measured = closed_loop(target.at_local_port(port), spec, progress)
    return round(measured.level.requests_per_s, 1)


@contextmanager
def _responder(response_bytes: int) -> Iterator[int]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "pipework.benchmarks.load.responder",
        f"{response_bytes}",
    ]
    with subprocess.Popen(  # noqa: S603  (a module of this package)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                message = "the responder that measures the load generator's limit did not start"
                raise NotReadyError(message)
            yield int(line)
        finally:
            process.kill()
            process.wait(STOP_S)
