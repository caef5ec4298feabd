"""The command `pipe serve`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipework.commands.options import Sets
from pipework.errors import ConfigError


class ServeBackend(StrEnum):
    """The server that `pipe serve` starts."""

    BUILTIN = "builtin"
    TRITON = "triton"


def serve(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|REPOSITORY", help="run folder or model repository")
    ],
    backend: Annotated[ServeBackend, typer.Option(help="server")] = ServeBackend.BUILTIN,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 for any free port")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 for any free port")] = 8001,
    engine: Annotated[
        str | None, typer.Option(help="name of a proven engine, see pipe show")
    ] = None,
    workers: Annotated[
        str, typer.Option(metavar="N|auto", help="processes that answer requests")
    ] = "1",
    overrides: Sets = None,
) -> None:
    """Serve proven engines over HTTP and gRPC until SIGTERM or Ctrl-C."""
    from pipework.serve.config import ServeSettings
    from pipework.serve.observability.logs import set_up_logs
    from pipework.serve.run import serve as start
    from pipework.serve.sockets import ListenAddress
    from pipework.serve.workers.supervisor import serve_with_workers, worker_count
    from pipework.settings import load_settings

    named = [] if engine is None else [f"engine.name={engine}"]
    settings = load_settings(ServeSettings, None, [*(overrides or []), *named])
    set_up_logs(settings.logs)
    address = ListenAddress(host=host, port=port, grpc_port=grpc_port)
    count = worker_count(workers)
    if backend is ServeBackend.TRITON:
        from pipework.console import print_line
        from pipework.serve.triton.run import serve_triton

        if count > 1:
            message = f"--workers: expected 1 with --backend triton, found {count}"
            raise ConfigError(message, "remove --workers: tritonserver has threads of its own")
        serve_triton(target, settings, address=address, ready=_ready, report=print_line)
        return
    if count > 1:
        serve_with_workers(target, settings, address=address, workers=count, ready=_ready)
    else:
        start(target, settings, address=address, ready=_ready)


def _ready(listening: object) -> None:
    from pipework import console

    console.print_line(f"serving on {listening}")
