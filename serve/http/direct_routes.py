"""The doors that ask models, past the framework's routing and injection, which they do not need.

What they are called by, and how they are documented, stays the framework's.
"""

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import PipeError
from pipework.serve.http.errors import failure

POST = "POST"


class Asking:
    """Those routes of routers that ask a model: whatever is asked by POST.

    An endpoint takes the request and the parts of the path that its route names, and returns the
    whole answer; nothing is injected into it, and its headers hold no text of a client's.
    """

    def __init__(self, *routers: APIRouter) -> None:
        """Find them."""
        routes = (route for router in routers for route in router.routes)
        self._routes = [
            one for one in routes if isinstance(one, APIRoute) and one.methods == {POST}
        ]

    async def answer(self, request: Request) -> Response | None:
        """Return the answer to a POST, None where no route has its path."""
        for route in self._routes:
            if found := route.path_regex.match(request.scope["path"]):
                try:
                    answer: Response = await route.endpoint(request, **found.groupdict())
                except (PipeError, HTTPException) as error:
                    answer = failure(error)
                return answer
        return None


class Direct:
    """ASGI middleware, the innermost: answers what asks a model, and passes on all else."""

    def __init__(self, app: ASGIApp, asking: Asking) -> None:
        """Wrap an app that has these routes."""
        self._app = app
        self._asking = asking

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        if scope["type"] == "http" and scope["method"] == POST:
            answer = await self._asking.answer(Request(scope, receive))
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)
