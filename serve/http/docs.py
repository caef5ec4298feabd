"""/docs without the internet: Swagger UI from the installed package `swagger_ui_bundle`."""

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

STATIC = "/docs/static"
# The package carries Swagger UI 4, which reads OpenAPI up to 3.0 and shows nothing for 3.1.
OPENAPI_VERSION = "3.0.3"


def add_docs(app: FastAPI) -> None:
    """Serve the page and its files."""
    app.openapi_version = OPENAPI_VERSION
    app.mount(STATIC, StaticFiles(directory=str(swagger_ui_path)))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=app.openapi_url or "",
            title=app.title,
            swagger_js_url=f"{STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{STATIC}/swagger-ui.css",
            swagger_favicon_url=f"{STATIC}/favicon-32x32.png",
            # Without this the page asks validator.swagger.io for its opinion.
            swagger_ui_parameters={"validatorUrl": None},
        )
