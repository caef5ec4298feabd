"""Fuzzing of all endpoints with random requests.

Every response must be documented and no server error. Afterwards the same process must answer as
before, without more memory. For a nightly run set PIPEWORK_FUZZ=20000 and --log-cli-level=info.
"""

import gzip
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

NIGHT = int(os.environ.get("PIPEWORK_FUZZ", "0"))
CASES = NIGHT or 400
DESCRIBED = NIGHT // 4 or 100  # schemathesis needs 0.1 s per case
GROWTH = 64 * 2**20  # bytes; a leak of each request body would be many times more
SEED = random.SystemRandom().randrange(2**32) if NIGHT else 1
log = logging.getLogger(__name__)
TEXTS = (b"goal", b"", "雨 rain".encode(), b"\xff\xfe", b"a" * 5000, b"\x00")
NUMBERS = (0, 1, -1, 3, 2**31 - 1, 2**31, 2**63, 2**64, 10**400, 0.5, True, None, "1", [], {})
LENGTHS = ("0", "-1", "1e9", "99999999999999999999", "12 34", "0x10", "¼", "")


@pytest.fixture(scope="module")
def fuzzed(run, start_server):
    return start_server(run)


@pytest.fixture(autouse=True)
def _works_afterwards(fuzzed) -> Iterator[None]:
    """Check that the server still answers."""
    yield
    answer = httpx.post(f"{fuzzed.url}/v1/predict", json={"texts": ["goal"]})
    assert answer.json()["predictions"][0]["label"] == "sport"


def report(seen, server, before) -> None:
    growth = (server.memory() - before) / 2**20
    log.info("%d cases: %s; %.1f MB more", seen.total(), dict(seen), growth)


def operations(server) -> list:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    return [result.ok() for result in schema.get_all_operations()]


def fuzz(operation, server, mode, cases, seen) -> None:
    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=not NIGHT,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case) -> None:
        if "name" in (case.path_parameters or {}) and seen.total() % 4:
            case.path_parameters["name"] = "topics"
        answer = case.call(base_url=server.url)
        late = answer.status_code == 504 and "X-Request-Timeout-Ms" in (case.headers or {})
        assert answer.status_code < 500 or late, answer.text
        # The description of a server cannot contain all constraints of the inputs of a model.
        excluded = [positive_data_acceptance, not_a_server_error]
        case.validate_response(answer, excluded_checks=excluded)
        seen[operation.label, answer.status_code] += 1

    check()


def test_responses_are_those_of_the_openapi_description(fuzzed):
    seen: Counter = Counter()
    described = operations(fuzzed)
    with_input = [item for item in described if item.body or item.path_parameters]
    for operation in described:
        cases = DESCRIBED // len(described)
        fuzz(operation, fuzzed, schemathesis.GenerationMode.POSITIVE, cases, seen)
    before = fuzzed.memory()
    for operation in with_input:
        cases = DESCRIBED // len(with_input)
        fuzz(operation, fuzzed, schemathesis.GenerationMode.NEGATIVE, cases, seen)
    report(seen, fuzzed, before)
    assert fuzzed.memory() - before < GROWTH
    assert {status for _, status in seen} >= {200, 400, 404, 422}


def body(dice) -> tuple[bytes, dict[str, bytes], bool]:
    """Return a binary body, valid or mutated, its headers, and whether it has a timeout."""
    texts = dice.choices(TEXTS, k=dice.randrange(5))
    packed = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES"}
    tensor["parameters"] = {"binary_data_size": len(packed)}
    request = {"inputs": [tensor], "outputs": [{"name": "logits", "parameters": {}}]}
    if dice.random() < 0.5:
        change(dice, request, tensor)
    head = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    if dice.random() < 0.2:
        length = str(dice.randrange(2 * len(head)))
        headers["Inference-Header-Content-Length"] = dice.choice((*LENGTHS, length))
    content = head + packed
    for _ in range(dice.choice((0, 0, 1, 3, 20))):
        content = mutated(dice, content)
    timed = b"timeout" in content
    if dice.random() < 0.2:
        headers["Content-Encoding"] = dice.choice(("gzip", "deflate", "br", ""))
        content = gzip.compress(content, 1) if dice.random() < 0.8 else content
    return content, {name: value.encode() for name, value in headers.items()}, timed


def change(dice, request, tensor) -> None:
    number = dice.choice(NUMBERS)
    match dice.randrange(7):
        case 0:
            tensor["shape"] = [number] * dice.randrange(4)
        case 1:
            tensor["parameters"]["binary_data_size"] = number
        case 2:
            tensor["datatype"] = dice.choice(("INT64", "FP32", "", "bytes", None))
        case 3:
            request["inputs"] = request["inputs"] * dice.randrange(3)
        case 4:
            request["outputs"][0]["parameters"] = {
                dice.choice(("classification", "binary_data")): number
            }
        case 5:
            request["parameters"] = {
                dice.choice(("timeout", "priority", "binary_data_output")): number
            }
        case _:
            tensor["data"] = dice.choice((["a"], [["a"]], [1], [float("nan")], [[[]]], "a"))


def mutated(dice, content: bytes) -> bytes:
    at, end = sorted(dice.randrange(len(content) + 1) for _ in range(2))
    match dice.randrange(4):
        case 0:
            return content[:at] + dice.randbytes(1) + content[at + 1 :]
        case 1:
            return content[:at] + content[end:]
        case 2:
            return content[:end] + content[at:]
        case _:
            return content[:at] + dice.randbytes(dice.randrange(9)) + content[at:]


def test_binary_bodies_are_answered_or_rejected(fuzzed):
    dice = random.Random(SEED)
    seen: Counter = Counter()
    before = 0
    with httpx.Client(base_url=fuzzed.url, timeout=60) as client:
        for number in range(CASES):
            if number == CASES // 4:
                before = fuzzed.memory()
            content, headers, timed = body(dice)
            answer = client.post("/v2/models/topics/infer", content=content, headers=headers)
            seen[answer.status_code] += 1
            details = (SEED, number, answer.status_code, answer.text[:200])
            assert answer.status_code in {200, 400, 413, 415, 504 if timed else 200}, details
            assert answer.status_code == 200 or "\n" not in answer.json()["error"], details
    report(seen, fuzzed, before)
    assert fuzzed.memory() - before < GROWTH
    assert seen[200] > CASES / 20 < seen[400]
