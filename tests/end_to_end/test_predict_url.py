"""`pipe predict --url` answers as `pipe predict RUN` does, whoever serves."""

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from pipework.errors import MissingDependencyError
from pipework.export.config import TritonSettings
from pipework.export.triton.model_repository import Wanted, add_version
from pipework.progress import Silent
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer

PIPE = Path(sys.executable).with_name("pipe")
ROWS = [
    f"row {number}: {text}" for number, text in enumerate(["rain", "票房 of a film", "goal"] * 50)
]


def pipe(*words, stdin=""):
    return subprocess.run(
        [PIPE, *map(str, words)], capture_output=True, text=True, check=False, input=stdin
    )


@contextmanager
def served(*words):
    command = [PIPE, "serve", *map(str, words), "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        alarm = Timer(120, process.kill)
        alarm.start()
        try:
            lines = []
            while not lines or not lines[-1].startswith("serving on "):
                lines.append(process.stdout.readline())
                assert lines[-1]
            alarm.cancel()
            yield lines
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            alarm.cancel()
            process.kill()


@pytest.fixture(scope="module")
def ours(exported_run):
    with served(exported_run) as lines:
        _, _, http, *_, grpc = lines[-1].split()
        yield {"http": http, "grpc": f"grpc://{grpc}"}


@pytest.fixture(scope="module")
def triton(exported_run, tmp_path_factory):
    """The URLs of both doors of a real tritonserver."""
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    folder = tmp_path_factory.mktemp("triton") / "repository"
    add_version(exported_run, folder, TritonSettings(name="topics"), Wanted(), Silent())
    with TritonServer(folder, installation=installation) as server:
        yield {"http": server.url, "grpc": f"grpc://{server.grpc}"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{row}\tarts\n" for row in ROWS))
    return path


@pytest.fixture(params=["ours http", "ours grpc", "triton http", "triton grpc"])
def url(request):
    """Each door of each server; Triton's model is named, as its index is closed."""
    who, door = request.param.split()
    return request.getfixturevalue(who)[door] + ("/v2/models/topics" if who == "triton" else "")


@pytest.fixture(scope="module")
def local(exported_run, rows, tmp_path_factory):
    """What the run folder answers to the rows, as jsonl."""
    out = tmp_path_factory.mktemp("local") / "out.jsonl"
    pipe("predict", exported_run, "--file", rows, "--out", out)
    return read(out)


def test_a_server_answers_a_file_as_the_run_folder_does(rows, url, local, tmp_path):
    out = tmp_path / "out.jsonl"
    done = pipe("predict", "--url", url, "--file", rows, "--out", out)
    assert done.stderr.endswith(f"150 predictions in {out}\n"), done.stderr
    assert re.search(r"asking .*: 150 of 150 rows, [\d,]+ rows/s", done.stderr)
    for found, expected in zip(read(out), local, strict=True):
        assert found.pop("scores") == pytest.approx(expected["scores"], abs=1e-6)
        assert found.pop("score") == pytest.approx(expected["score"], abs=1e-6)
        assert found == {name: expected[name] for name in ("text", "label")}


def test_texts_and_lines_look_as_those_of_the_run_folder(exported_run, ours, tmp_path):
    expected = pipe("predict", exported_run, *ROWS[:3]).stdout
    assert pipe("predict", "--url", ours["http"], *ROWS[:3]).stdout == expected
    lines = "\n".join(ROWS[:3]) + "\n"
    assert pipe("predict", "--url", ours["http"], stdin=lines).stdout == expected
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"7,{row}\n" for row in ROWS[:3]))
    words = ("--url", ours["grpc"], "--file", path, "--columns", "text=1")
    assert pipe("predict", *words).stdout == expected


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_one_row_is_refused_for_leaves_no_file(ours, tmp_path):
    path, out = tmp_path / "rows.tsv", tmp_path / "out.tsv"
    path.write_text("text\n" + "word\n" * 70 + "long " * 30_000 + "\n")
    done = pipe("predict", "--url", ours["http"], "--file", path, "--out", out)
    assert done.returncode == 2
    assert "error: of inputs 65 to 71: input 6: expected at most 100000 characters" in done.stderr
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected a run folder or --url, found neither"),
        (("{run}", "--url", "http://127.0.0.1:9"), "expected a run folder or --url, found both: "),
        (("--url", "http://127.0.0.1:9", "text", "--file", "f.tsv"), "texts or --file, found both"),
        (("{run}", "--file", "f.tsv", "--columns", "text=0"), "--columns is for a --file that a"),
        (("--url", "ftp://here", "text"), "ftp://here: expected http://, https://, grpc://"),
        (("--url", "http://127.0.0.1:9", "text"), "http://127.0.0.1:9 cannot be reached"),
        (("--url", "grpc://127.0.0.1:9/v2/models/a", "x"), "grpc://127.0.0.1:9 cannot be reached"),
    ],
)
def test_what_the_user_can_mend_is_one_line(exported_run, words, message):
    done = pipe("predict", *(word.format(run=exported_run) for word in words))
    assert done.returncode == 2
    (line,) = (one for one in done.stderr.splitlines() if one.startswith("error:"))
    assert message in line
    assert "Traceback" not in done.stderr
