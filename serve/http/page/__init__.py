"""The web page at `/`: classify a text and see the load of the server.

Its files are in this folder and use no external resources; the Content-Security-Policy forbids
them.
"""

from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

HERE = Path(__file__).parent
FILES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
HEADERS = {
    # https://www.w3.org/TR/CSP3/
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a new server version has a new page
}


def add_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    add_file(app, "/", HERE / "page.html", "text/html", HEADERS)
    for name, media_type in FILES.items():
        add_file(app, f"/page/{name}", HERE / name, media_type, HEADERS)


def add_file(
    app: FastAPI, path: str, file: Path, media_type: str, headers: Mapping[str, str]
) -> None:
    """Serve a file, which is read now: many requests at a time need its memory only once."""
    content = file.read_bytes()

    @app.get(path, include_in_schema=False)
    async def read() -> Response:
        return Response(content, media_type=media_type, headers=headers)
