"""Every kind of target against a real server: the first answer, load, and what the server says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.generator_limit import generator_limit
from pipework.benchmarks.load.open_loop import open_loop
from pipework.benchmarks.load.outcome import first_answer
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import Wire, target
from pipework.errors import PipeError
from pipework.progress import Silent
from pipework.run_folder.manifest import read_manifest

PIPE = Path(sys.executable).with_name("pipe")
WORKLOAD = Workload.synthetic(texts_per_request=3, seed=0)
KINDS = {
    "rest": ("http://{http}", None),
    "protocol": ("http://{http}/v2/models/{model}", None),
    "grpc": ("grpc://{grpc}/{model}", None),
    "template": ("http://{http}/v1/predict", '{{"texts": "$TEXTS"}}'),
}


@pytest.fixture(scope="module")
def doors(exported_run):
    command = [PIPE, "serve", exported_run, "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            http, grpc = re.fullmatch(r"serving on http://(\S+) and gRPC on (\S+)\n", line).groups()
            model = read_manifest(exported_run).identity.name
            yield {"http": http, "grpc": grpc, "model": model}
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.fixture(params=KINDS)
def asked(request, doors):
    url, template = KINDS[request.param]
    return target(url.format(**doors), template and template.format())


def test_the_first_answer_names_the_model(asked, doors):
    found = first_answer(asked, WORKLOAD.requests[0])
    assert found.model == doors["model"]
    with pytest.raises(PipeError, match="answered, but not with"):
        asked.check(found.content, 2)


def test_load_is_answered_and_the_server_is_seen(asked):
    options = {"duration_s": 0.9, "limit_s": 0.9, "warmup_s": 0.2, "progress": Silent()}
    closed = closed_loop(asked, WORKLOAD, concurrency=2, **options)
    longer = options | {"duration_s": 3.0, "limit_s": 3.0}
    opened = open_loop(asked, WORKLOAD, rate=10, seed=0, **longer)
    for level in (closed, opened):
        assert level.errors == {}
        assert level.texts == 3 * level.requests > 0
        assert 0 < level.server.cores < 64
        assert level.server.peak_mib > 10
        assert {"queue"} < set(level.stages_ms)
        assert sum(level.stages_ms.values()) > 0
    assert opened.late < opened.sent


def test_the_generator_has_a_limit_of_its_own(asked):
    limit = generator_limit(asked, WORKLOAD, answer_bytes=500, progress=Silent())
    assert limit is None if asked.wire is Wire.GRPC else limit > 100


@pytest.mark.parametrize("kind", ["protocol", "grpc"])
def test_a_model_that_there_is_not_is_told(doors, kind):
    url, _ = KINDS[kind]
    wrong = target(url.format(**doors | {"model": "other"}))
    with pytest.raises(PipeError, match=r"refused the first request: .*other"):
        first_answer(wrong, WORKLOAD.requests[0])
    level = closed_loop(
        wrong,
        WORKLOAD,
        concurrency=1,
        duration_s=0.2,
        warmup_s=0,
        limit_s=0.2,
        progress=Silent(),
    )
    assert set(level.errors) == {"HTTP 404" if kind == "protocol" else "NOT_FOUND"}


def test_where_no_server_listens_it_is_told():
    asked = target("grpc://127.0.0.1:9/model")
    with pytest.raises(PipeError, match=r"no server answers at grpc://127\.0\.0\.1:9/model"):
        first_answer(asked, WORKLOAD.requests[0])
    level = open_loop(
        asked, WORKLOAD, rate=20, duration_s=0.3, limit_s=0.3, seed=0, progress=Silent()
    )
    assert set(level.errors) == {"UNAVAILABLE"}
