"""The web page at `/`: classify a text and see the load of the server.

Its files are in this folder and use no external resources; the Content-Security-Policy forbids
them.
"""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse

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

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(HERE / "page.html", media_type="text/html", headers=HEADERS)

    for name, media_type in FILES.items():
        _add_file(app, name, media_type)


def _add_file(app: FastAPI, name: str, media_type: str) -> None:
    @app.get(f"/page/{name}", include_in_schema=False)
    async def file() -> FileResponse:
        return FileResponse(HERE / name, media_type=media_type, headers=HEADERS)
