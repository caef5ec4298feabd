import pytest
from pydantic import BaseModel

from pipework.serve.app import build_app
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.openapi import body_of
from pipework.serve.models.registry import Models


class Part(BaseModel):
    size: int | None = None


class Whole(BaseModel):
    parts: list[Part]


def described(keys=()) -> dict:
    with Models([]) as models:
        return build_app(models, keys=ApiKeys(keys)).openapi()


def operations(api):
    for path, methods in api["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_a_body_refers_to_nothing_outside_itself_and_knows_no_null():
    body = body_of(Whole, {"one": {"value": {"parts": []}}}, required=False)
    schema = body["content"]["application/json"]["schema"]
    (part,) = [schema["properties"]["parts"]["items"]]
    assert part["properties"]["size"]["type"] == "integer"
    assert "$ref" not in str(schema)
    assert "null" not in str(schema)
    assert not body["required"]


def test_a_status_that_is_never_answered_is_not_described():
    api = described()
    assert not {"HTTPValidationError", "ValidationError"} & api["components"]["schemas"].keys()
    listed = {path for path, operation in operations(api) if "422" in operation["responses"]}
    assert listed == {"/v1/predict"}


def test_with_keys_all_but_the_open_doors_want_one():
    api = described(["a-key-of-0123456789"])
    assert api["components"]["securitySchemes"].keys() == {"bearer", "key"}
    for path, operation in operations(api):
        open_door = "health" in path or path == "/readyz"
        assert ("401" in operation["responses"]) != open_door
        assert ("security" in operation) != open_door


def test_without_keys_none_is_spoken_of():
    api = described()
    assert "securitySchemes" not in api["components"]
    assert not any("401" in operation["responses"] for _, operation in operations(api))


@pytest.mark.parametrize("path", ["/v1/predict", "/v2/models/{name}/infer", "/v2/repository/index"])
def test_requests_are_shown_by_example(path):
    content = described()["paths"][path]["post"]["requestBody"]["content"]
    assert content["application/json"]["examples"]
