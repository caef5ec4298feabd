"""What /openapi.json says beside what FastAPI knows of the routes.

Of OpenAPI 3.0, because that is what the page /docs can read.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import NullableSchema
from swagger_ui_bundle import swagger_ui_path

from pipework.serve.http.auth import is_open
from pipework.serve.http.headers import BULK, INTERACTIVE, MOST_MS, PRIORITY, TIMEOUT
from pipework.serve.schemas import ErrorResponse

Json = dict[str, Any]
ERROR = {"$ref": f"#/components/schemas/{ErrorResponse.__name__}"}
# FastAPI adds these to every route with a parameter; texts in a path are never refused so.
UNUSED = ("HTTPValidationError", "ValidationError")
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
METHODS = ("get", "post")


def body_of(
    model: type[BaseModel],
    examples: Json,
    others: Mapping[str, Json] | None = None,
    *,
    required: bool = True,
) -> Json:
    """Describe the body of a route that reads it itself.

    Args:
        model: of its JSON.
        examples: by name.
        others: schemas of other media types.
        required: whether there must be one.
    """
    schema = model.model_json_schema(schema_generator=_WithoutNull)
    schema = _inlined(schema, schema.pop("$defs", {}))
    content: Json = {"application/json": {"schema": schema, "examples": examples}}
    content |= {media: {"schema": other} for media, other in (others or {}).items()}
    return {"required": required, "content": content}


def header(name: str, schema: Json, description: str) -> Json:
    """Describe a header of a request."""
    return {"name": name, "in": "header", "schema": schema, "description": description}


TERMS = [
    header(
        TIMEOUT,
        {"type": "number", "exclusiveMinimum": True, "minimum": 0, "maximum": MOST_MS},
        "milliseconds after which nobody waits for the answer",
    ),
    header(PRIORITY, {"type": "string", "enum": [INTERACTIVE, BULK]}, "interactive ones go first"),
]


def complete(app: FastAPI, examples: Mapping[str, str], *, keys: bool) -> None:
    """Mend the description of an app.

    Args:
        app: whose routes are all there.
        examples: of parameters in paths, by name.
        keys: whether a key is needed.
    """
    describe = app.openapi

    def described() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = describe()
            _mend(app.openapi_schema, examples, keys=keys)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _mend(api: Json, examples: Mapping[str, str], *, keys: bool) -> None:
    for name in UNUSED:
        api["components"]["schemas"].pop(name, None)
    if keys:
        api["components"]["securitySchemes"] = SECURITY
    for path, methods in api["paths"].items():
        for operation in (methods[method] for method in METHODS if method in methods):
            _mend_operation(operation, examples)
            if keys and not is_open(path):
                _guard(operation)


def _mend_operation(operation: Json, examples: Mapping[str, str]) -> None:
    _without_unused(operation["responses"])
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and parameter["name"] in examples:
            parameter["example"] = examples[parameter["name"]]


def _guard(operation: Json) -> None:
    operation["security"] = [{name: []} for name in SECURITY]
    content = {"application/json": {"schema": ERROR}}
    operation["responses"]["401"] = {"description": "no API key that is known", "content": content}


def _without_unused(responses: Json) -> None:
    if any(name in str(responses.get("422")) for name in UNUSED):
        del responses["422"]


def _inlined(node: Any, definitions: Json) -> Any:  # noqa: ANN401  (any JSON)
    """Put definitions where they are referred to."""
    if isinstance(node, list):
        return [_inlined(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}


class _WithoutNull(GenerateJsonSchema):
    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        # OpenAPI 3.0 has no type null; what is optional may be left out.
        return self.generate_inner(schema["schema"])


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
