"""The doors that ask models, past the framework's routing and injection, which they do not need.

What they are called by, and how they are documented, stays the framework's.
"""

from collections.abc import Iterable

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import PipeError
from serve.failures import failure

POST = "POST"


class Direct:
    """ASGI middleware, the innermost: calls the endpoint of a route, and passes on all else.

    The endpoint takes the request and the parts of the path that the route names, and returns the
    answer; nothing is injected into it.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[APIRoute]) -> None:
        """Wrap an app that has these routes."""
        self._app = app
        self._routes = [*routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        if scope["type"] == "http" and scope["method"] == POST:
            for route in self._routes:
                if found := route.path_regex.match(scope["path"]):
                    try:
                        answer = await route.endpoint(Request(scope, receive), **found.groupdict())
                    except (PipeError, HTTPException) as error:
                        answer = failure(error)
                    await answer(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def asking_models(*routers: APIRouter) -> list[APIRoute]:
    """Return those routes of routers that ask a model: whatever is asked by POST."""
    routes = (route for router in routers for route in router.routes)
    return [one for one in routes if isinstance(one, APIRoute) and one.methods == {POST}]
