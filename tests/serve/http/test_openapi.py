import base64
import hashlib
import re

import pytest
from pydantic import BaseModel

from pipework.serve.app import build_app
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.openapi import request_body
from pipework.serve.models.registry import Models
from tests.serve.servers import MemoryServer


class SchemaPart(BaseModel):
    size: int | None = None


class Container(BaseModel):
    parts: list[SchemaPart]


def description(keys=()) -> dict:
    with Models([]) as models:
        return build_app(models, keys=ApiKeys(keys)).app.openapi()


def operations(api):
    for path, methods in api["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_a_body_schema_has_no_references_and_no_null():
    body = request_body(Container, {"one": {"value": {"parts": []}}}, required=False)
    schema = body["content"]["application/json"]["schema"]
    (part,) = [schema["properties"]["parts"]["items"]]
    assert part["properties"]["size"]["type"] == "integer"
    assert "$ref" not in str(schema)
    assert "null" not in str(schema)
    assert not body["required"]


def test_unused_error_responses_are_not_description():
    api = description()
    assert not {"HTTPValidationError", "ValidationError"} & api["components"]["schemas"].keys()
    listed = {path for path, operation in operations(api) if "422" in operation["responses"]}
    assert listed == {"/v1/predict"}


def test_all_but_public_endpoints_require_a_key():
    api = description(["a-key-of-0123456789"])
    assert api["components"]["securitySchemes"].keys() == {"bearer", "key"}
    for path, operation in operations(api):
        public = "health" in path or path == "/readyz"
        assert ("401" in operation["responses"]) != public
        assert ("security" in operation) != public


def test_without_keys_no_endpoint_requires_one():
    api = description()
    assert "securitySchemes" not in api["components"]
    assert not any("401" in operation["responses"] for _, operation in operations(api))


@pytest.mark.parametrize("path", ["/v1/predict", "/v2/models/{name}/infer", "/v2/repository/index"])
def test_request_bodies_have_examples(path):
    content = description()["paths"][path]["post"]["requestBody"]["content"]
    assert content["application/json"]["examples"]


def test_the_page_may_run_only_its_own_scripts():
    with Models([]) as models:
        response = MemoryServer(models).request("GET", "/docs")
    policy = response.headers["content-security-policy"]
    inline = re.findall("<script>(.*?)</script>", response.text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in inline]
    (scripts,) = [part for part in policy.split("; ") if part.startswith("script-src")]
    assert scripts == f"script-src 'self' 'sha256-{hashes[0]}'"
    assert "default-src 'none'" in policy
