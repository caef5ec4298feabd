"""Before the doors of HTTP: who has no key is not let in, and nothing of the body is read."""

from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.serve.http.errors import failure
from pipework.serve.http.keys import ApiKeys, KeyNeededError

HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
# What holds no data: the pages. What they show is asked for with a key.
PAGES = frozenset({"/", "/docs", "/openapi.json", "/favicon.ico"})
FOLDERS = ("/docs/static/", "/page/")


class KeyGuard:
    """ASGI middleware: a request needs a key, save for health and pages."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """Wrap an app."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if self._keys and scope["type"] == "http" and not is_open(scope["path"]):
            headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
            ]
            try:
                self._keys.check(headers)
            except KeyNeededError as error:
                await failure(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Return whether anybody may ask for a path."""
    return path in HEALTH or path in PAGES or path.startswith(FOLDERS)
