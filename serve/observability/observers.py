"""All that looks at requests: metrics, what happened lately, the log and traces."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.closeable import Closing
from pipework.errors import MissingDependencyError
from pipework.serve.config import ServeSettings
from pipework.serve.models.registry import Models
from pipework.serve.observability.logs import RequestLog
from pipework.serve.observability.metrics import Metrics
from pipework.serve.observability.recent_latency import Recent
from pipework.serve.request.context import CARRIED, REQUEST_ID, Door, Observed, begin
from pipework.serve.schemas import PREDICT_PATH

LOOKED_AT = frozenset(name.encode() for name in (REQUEST_ID, *CARRIED))


class Observer(Protocol):
    """Who wants to know of each request that asks a model."""

    def finished(self, request: Observed) -> None:
        """Take a request whose answer has been sent, or that has failed."""

    def close(self) -> None:
        """Pass on what is kept."""


class Watch(Closing):
    """What looks at the requests of one server.

    Attributes:
        metrics: for Prometheus.
        recent: the requests of the last seconds.
    """

    def __init__(self, models: Models, settings: ServeSettings | None = None) -> None:
        """Open what the settings ask for.

        Raises:
            MissingDependencyError: traces are asked for and what sends them is not installed.
        """
        settings = settings or ServeSettings()
        self.metrics = Metrics(models)
        self.recent = Recent()
        self._observers: list[Observer] = [self.metrics, self.recent]
        if settings.logs.requests:
            self._observers.append(RequestLog())
        if settings.traces:
            self._observers.append(_traces())

    @contextmanager
    def request(self, door: Door | None, headers: Mapping[str, str]) -> Iterator[Observed]:
        """Observe a request; whoever answers sets `status`.

        Args:
            door: how it came; None for what asks no model, which only gets its id.
            headers: of HTTP, or metadata of gRPC, with names in lower case.
        """
        observed = begin(door, headers)
        try:
            yield observed
        finally:
            self.finish(observed)

    def finish(self, observed: Observed) -> None:
        """Tell all who want to know of a request that it has ended."""
        observed.end()
        if observed.door is not None:
            for one in self._observers:
                one.finished(observed)

    def close(self) -> None:
        """Pass on what is kept."""
        for one in self._observers:
            one.close()


class WatchRequests:
    """ASGI middleware: each request is observed, and each answer says the request's id."""

    def __init__(self, app: ASGIApp, watch: Watch) -> None:
        """Wrap an app."""
        self._app = app
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and look at the status of the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._watch.request(_door(scope["path"]), looked_at(scope["headers"])) as observed:
            observed.status = "500"  # what the client sees where nothing is sent

            async def note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    observed.status = str(message["status"])
                    MutableHeaders(scope=message)[REQUEST_ID] = observed.id
                await send(message)
                if not message.get("more_body", False) and message["type"].endswith("body"):
                    observed.end()

            await self._app(scope, receive, note)


def looked_at(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return those headers that are looked at."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers
        if name in LOOKED_AT
    }


def _door(path: str) -> Door | None:
    if path == PREDICT_PATH:
        return Door.V1
    return Door.V2 if path.startswith("/v2/") and path.endswith("/infer") else None


def _traces() -> Observer:
    try:
        from pipework.serve.observability.traces import Traces  # noqa: PLC0415  (optional)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        message = f"traces = true, and {error.name} is not installed"
        raise MissingDependencyError(message, "pip install 'pipework[traces]'") from error
    return Traces()
