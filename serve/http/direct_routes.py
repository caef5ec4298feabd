"""Calls the inference endpoints without FastAPI's routing and dependency injection.

This saves time per request. Paths and documentation of the endpoints still come from FastAPI.
"""

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import PipeError
from pipework.serve.http.errors import error_response

POST = "POST"


class DirectRoutes:
    """The POST routes of some routers.

    Each endpoint takes the request and the path parameters of its route, and returns the complete
    response. It uses no dependency injection, and its response headers contain no client input.
    """

    def __init__(self, *routers: APIRouter) -> None:
        routes = (route for router in routers for route in router.routes)
        self._routes = [
            route for route in routes if isinstance(route, APIRoute) and route.methods == {POST}
        ]

    async def answer(self, request: Request) -> Response | None:
        """Return the response to a POST request, or None if no route matches its path."""
        for route in self._routes:
            if match := route.path_regex.match(request.scope["path"]):
                try:
                    response: Response = await route.endpoint(request, **match.groupdict())
                except (PipeError, HTTPException) as error:
                    response = error_response(error)
                return response
        return None


class DirectRouteMiddleware:
    """Innermost ASGI middleware: calls the direct routes and forwards all other requests."""

    def __init__(self, app: ASGIApp, routes: DirectRoutes) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or forward it."""
        if scope["type"] == "http" and scope["method"] == POST:
            response = await self._routes.answer(Request(scope, receive))
            if response is not None:
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
