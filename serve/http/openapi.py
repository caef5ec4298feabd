"""Additions to the OpenAPI description of FastAPI, and the /docs page.

The version is OpenAPI 3.0, because the Swagger UI of /docs cannot read 3.1.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import NullableSchema
from swagger_ui_bundle import swagger_ui_path

from pipework.serve.http.auth import is_public
from pipework.serve.http.page import add_file
from pipework.wire.headers import BULK, ESCALATED, INTERACTIVE, MAX_TIMEOUT_MS, PRIORITY, TIMEOUT
from pipework.wire.schemas import ErrorResponse

Json = dict[str, Any]
ERROR = {"$ref": f"#/components/schemas/{ErrorResponse.__name__}"}
# FastAPI adds these schemas to every route with a parameter, but this server never returns them.
UNUSED = ("HTTPValidationError", "ValidationError")
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
ERRORS = {
    400: "not a valid request, or a header has an invalid value",
    403: "clients may not load models, or a web page has sent the request",
    404: "no such model or version",
    408: "the request was not received in time",
    413: "the body, the number of texts or a text is too large",
    415: "the Content-Encoding is neither gzip nor deflate",
    422: "the body is JSON, but not a valid request",
    429: "the queue is full; Retry-After is the number of seconds to wait",
    503: "the server is stopping, or no engine is available",
    504: "the deadline of the request has passed",
}
STATIC = "/docs/static"
BUNDLE, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"
FILES = {BUNDLE: "text/javascript", STYLE: "text/css", ICON: "image/png"}
CACHED = {"Cache-Control": "max-age=3600"}
# Swagger UI has a script in its page, inline styles and images in data URLs.
CSP = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SCRIPT = re.compile(b"<script>(.*?)</script>", re.DOTALL)
# The package contains Swagger UI 4, which renders nothing for OpenAPI 3.1.
OPENAPI_VERSION = "3.0.3"


def request_body(
    model: type[BaseModel],
    examples: Json,
    others: Mapping[str, Json] | None = None,
    *,
    required: bool = True,
) -> Json:
    """Describe the body of a route that parses it without FastAPI."""
    schema = model.model_json_schema(schema_generator=_NoNullSchema)
    schema = _inlined(schema, schema.pop("$defs", {}))
    content: Json = {"application/json": {"schema": schema, "examples": examples}}
    content |= {media: {"schema": other} for media, other in (others or {}).items()}
    return {"required": required, "content": content}


def error_responses(*statuses: int) -> dict[int | str, Json]:
    """Describe the responses with errors of a route."""
    return {status: {"model": ErrorResponse, "description": ERRORS[status]} for status in statuses}


def header_parameter(name: str, schema: Json, description: str) -> Json:
    """Describe a request header."""
    return {"name": name, "in": "header", "schema": schema, "description": description}


OPTION_HEADERS = [
    header_parameter(
        TIMEOUT,
        {"type": "number", "exclusiveMinimum": True, "minimum": 0, "maximum": MAX_TIMEOUT_MS},
        "deadline in milliseconds; later the request is not computed",
    ),
    header_parameter(
        PRIORITY,
        {"type": "string", "enum": [INTERACTIVE, BULK]},
        "interactive requests are scheduled before bulk requests",
    ),
    header_parameter(
        ESCALATED,
        {"type": "string"},
        "the request comes from another server: this server asks no further server",
    ),
]


def customize_openapi(app: FastAPI, examples: Mapping[str, str], *, keys: bool) -> None:
    """Customize the OpenAPI description of an app."""
    generate = app.openapi

    def described() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = generate()
            _customize(app.openapi_schema, examples, keys=keys)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _customize(api: Json, examples: Mapping[str, str], *, keys: bool) -> None:
    for name in UNUSED:
        api["components"]["schemas"].pop(name, None)
    if keys:
        api["components"]["securitySchemes"] = SECURITY
    for path, methods in api["paths"].items():
        for operation in methods.values():
            _customize_operation(operation, examples)
            if keys and not is_public(path):
                _require_key(operation)


def _customize_operation(operation: Json, examples: Mapping[str, str]) -> None:
    responses = operation["responses"]
    if any(name in str(responses.get("422")) for name in UNUSED):
        del responses["422"]
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and parameter["name"] in examples:
            parameter["example"] = examples[parameter["name"]]


def _require_key(operation: Json) -> None:
    operation["security"] = [{name: []} for name in SECURITY]
    content = {"application/json": {"schema": ERROR}}
    operation["responses"]["401"] = {"description": "no valid API key", "content": content}


def _inlined(node: Any, definitions: Json) -> Any:  # noqa: ANN401  (any JSON)
    """Replace references with their definitions."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}


class _NoNullSchema(GenerateJsonSchema):
    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        # OpenAPI 3.0 has no null type. Optional fields can be omitted instead.
        return self.generate_inner(schema["schema"])


def add_docs(app: FastAPI) -> None:
    """Serve the /docs page and its static files."""
    app.openapi_version = OPENAPI_VERSION
    for name, media_type in FILES.items():
        add_file(app, f"{STATIC}/{name}", Path(swagger_ui_path) / name, media_type, CACHED)

    page = get_swagger_ui_html(
        openapi_url=app.openapi_url or "",
        title=app.title,
        swagger_js_url=f"{STATIC}/{BUNDLE}",
        swagger_css_url=f"{STATIC}/{STYLE}",
        swagger_favicon_url=f"{STATIC}/{ICON}",
        # By default the page sends the description to validator.swagger.io.
        swagger_ui_parameters={"validatorUrl": None},
    )
    digests = [hashlib.sha256(script).digest() for script in SCRIPT.findall(bytes(page.body))]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    page.headers["Content-Security-Policy"] = CSP.format(script=hashes)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page
