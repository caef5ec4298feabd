"""`pipe predict --url` returns the predictions of `pipe predict RUN` with every server."""

import json
import re

import pytest

from pipework.errors import MissingDependencyError
from pipework.export.config import TritonSettings
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer
from tests.commands import pipe, served

ROWS = [
    f"row {number}: {text}" for number, text in enumerate(["rain", "票房 of a film", "goal"] * 50)
]


@pytest.fixture(scope="module")
def pipework_server(exported_run):
    with served(exported_run) as (http, grpc):
        yield {"http": http, "grpc": f"grpc://{grpc}"}


@pytest.fixture(scope="module")
def triton_server(exported_run, tmp_path_factory):
    """URLs of the HTTP and gRPC ports of a real tritonserver."""
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    folder = tmp_path_factory.mktemp("triton") / "repository"
    add_version(exported_run, folder, TritonSettings(name="topics"), EngineChoice(), NullProgress())
    with TritonServer(folder, installation=installation) as server:
        yield {"http": server.url, "grpc": f"grpc://{server.grpc}"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{row}\tarts\n" for row in ROWS))
    return path


@pytest.fixture(
    params=[
        "pipework_server http",
        "pipework_server grpc",
        "triton_server http",
        "triton_server grpc",
    ]
)
def url(request):
    """Each protocol of each server; Triton's URL names the model because its index is closed."""
    server, protocol = request.param.split()
    return request.getfixturevalue(server)[protocol] + (
        "/v2/models/topics" if server == "triton_server" else ""
    )


@pytest.fixture(scope="module")
def local(exported_run, rows, tmp_path_factory):
    """Predictions of the run folder for the rows, as read from jsonl."""
    out = tmp_path_factory.mktemp("local") / "out.jsonl"
    pipe("predict", exported_run, "--file", rows, "--out", out)
    return read(out)


def test_a_server_returns_the_predictions_of_the_run_folder_for_a_file(rows, url, local, tmp_path):
    out = tmp_path / "out.jsonl"
    done = pipe("predict", "--url", url, "--file", rows, "--out", out)
    assert done.stderr.endswith(f"wrote 150 predictions to {out}\n"), done.stderr
    assert re.search(r"predict with .*: 150 of 150 rows, [\d,]+ rows/s", done.stderr)
    for prediction, expected in zip(read(out), local, strict=True):
        assert prediction.pop("scores") == pytest.approx(expected["scores"], abs=1e-6)
        assert prediction.pop("score") == pytest.approx(expected["score"], abs=1e-6)
        assert prediction == {
            name: expected[name] for name in ("text", "label", "truncated", "windows")
        }


def test_a_column_of_second_texts_is_not_sent_to_a_model_of_single_texts(
    exported_run, url, tmp_path
):
    path = tmp_path / "rows.csv"
    path.write_text("text_pair,text\n" + "".join(f"other,{row}\n" for row in ROWS[:3]))
    expected = pipe("predict", exported_run, *ROWS[:3]).stdout
    done = pipe("predict", "--url", url, "--file", path)
    assert done.stdout == expected, done.stderr
    columns = "text=text,text_pair=text_pair"
    for source in ((exported_run,), ("--url", url)):
        done = pipe("predict", *source, "--file", path, "--columns", columns)
        expected = f"columns '{columns}': found text_pair, but this model classifies single texts"
        assert done.stderr.startswith(f"error: {expected}\nhint: "), done.stderr
        assert done.returncode == 2


def test_texts_and_lines_are_printed_like_those_of_the_run_folder(
    exported_run, pipework_server, tmp_path
):
    expected = pipe("predict", exported_run, *ROWS[:3]).stdout
    assert pipe("predict", "--url", pipework_server["http"], *ROWS[:3]).stdout == expected
    lines = "\n".join([*ROWS[:3], ""]).encode()
    assert pipe("predict", "--url", pipework_server["http"], stdin=lines).stdout == expected
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"7,{row}\n" for row in ROWS[:3]))
    words = ("--url", pipework_server["grpc"], "--file", path, "--columns", "text=1")
    assert pipe("predict", *words).stdout == expected


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_rejected_row_leaves_no_output_file(pipework_server, tmp_path):
    path, out = tmp_path / "rows.tsv", tmp_path / "out.tsv"
    path.write_text("text\n" + "word\n" * 70 + "long " * 30_000 + "\n")
    done = pipe("predict", "--url", pipework_server["http"], "--file", path, "--out", out)
    assert done.returncode == 2
    assert "error: in inputs 65 to 71: input 6: expected at most 100000 characters" in done.stderr
    assert [*tmp_path.iterdir()] == [path]
