import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pipework.cli import app
from tests.commands import pipe

PIPE = Path(sys.executable).with_name("pipe")
FROZEN = {
    "bench": "target against file columns words batch concurrency rate arrivals trace slo"
    " price template seconds json html",
    "check": "inputs overrides rows label_errors as_json",
    "combine": "runs out",
    "doctor": "as_json",
    "eval": "run file columns split engine as_json",
    "export": "run to precision layout repository first overrides",
    "import": "source out data overrides trust_remote_code force allow_unused family",
    "predict": "words file inputs out url columns engine keep shard raw_csv scores redact on "
    "allow_skipped max_rejects",
    "publish": "run to",
    "serve": "target backend host port grpc_port engine workers overrides",
    "show": "run as_json html overrides",
    "train": "config out overrides nproc resume",
    "tune": "config out trials seeds jobs overrides",
}


def test_the_options_are_frozen():
    commands = get_command(app).commands
    options = {name: [param.name for param in command.params] for name, command in commands.items()}
    expected = {name: names.split() for name, names in FROZEN.items()}
    assert {name: [p for p in names if p != "help"] for name, names in options.items()} == expected


def test_the_help_of_tune_names_its_section():
    assert "[tune]" in pipe("tune", "--help").stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['pipe', '--help']\n"
        "from pipework.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    heavy = {"torch", "transformers", "onnx", "onnxruntime", "numpy", "fastapi", "tokenizers"}
    assert loaded & heavy == set()
    assert "typer" in loaded


def check_error(done, message):
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert message in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nowhere"), "nowhere is not a folder"),
        (("serve", "nowhere"), "nowhere is not a folder"),  # it configures the logs of its process
    ],
)
def test_the_command_of_the_shell_reports_user_errors(words, message, tmp_path):
    done = subprocess.run([PIPE, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    check_error(done, message)


@pytest.mark.parametrize(
    ("name", "value", "words", "code", "text"),
    [
        ("PYTHONIOENCODING", "ascii", ("check", "rows.tsv"), 0, "\\u7530"),
        ("PYTHONOPTIMIZE", "2", ("train", "sample", "--out", "run"), 2, "runs with -OO or PYTH"),
    ],
)
def test_settings_of_python_cause_no_traceback(name, value, words, code, text, tmp_path):
    rows = "text\tlabel\n" + "\u7530\t\u7530\nfield\tfield\n" * 4
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    variables = {**os.environ, name: value}
    done = subprocess.run(
        [PIPE, *words], capture_output=True, text=True, check=False, cwd=tmp_path, env=variables
    )
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_show_prints_the_manifest_as_text_and_as_json(exported_run):
    shown = pipe("show", exported_run).stdout
    assert "onnx-fp32" in shown
    assert re.search(
        r"a linear SVM on .*, trained on the same rows: test accuracy 0\.\d{4} vs", shown
    )
    assert json.loads(pipe("show", exported_run, "--json").stdout)["engines"][0]["parity"]["passed"]


def test_export_adds_a_proven_engine_to_a_triton_repository_once(exported_run, tmp_path):
    words = ("export", exported_run, "--to", "triton", "--repository", tmp_path)
    first, again = (pipe(*words, "--set", "triton.name=topics") for _ in range(2))
    assert first.stdout.startswith("added: onnx-fp32, "), first.stderr
    assert again.stdout.startswith("already present: onnx-fp32, ")
    assert (tmp_path / "topics" / "1" / "manifest.json").is_file()


def test_predict_reads_texts_lines_and_files(exported_run, tmp_path):
    texts = ["rain all week", "票房破亿的电影"]
    by_words = pipe("predict", exported_run, *texts).stdout
    by_lines = pipe("predict", exported_run, stdin="\n".join([*texts, ""]).encode()).stdout
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\tarts\n" for text in texts))
    by_file = pipe("predict", exported_run, "--file", path).stdout
    assert by_words == by_lines == by_file
    assert [line.split("\t")[2] for line in by_words.splitlines()] == texts


def test_eval_prints_the_confusion_matrix_as_json(exported_run):
    result = json.loads(pipe("eval", exported_run, "--engine", "onnx-fp32", "--json").stdout)
    assert sum(rows for _, _, rows in result["confusion"]) == result["rows"] == 408
    assert sum(cell["predictions"] for cell in result["calibration"]["bins"]) == 408
    assert "calibration error " in pipe("eval", exported_run, "--engine", "onnx-fp32").stdout


def test_check_has_no_findings_for_the_sample():
    done = pipe("check", "sample")
    assert "no findings" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("torch", ("train", "sample", "--out", "x"), "train"),
        ("optuna", ("tune", "sample", "--out", "x"), "tune"),
        ("tritonclient", ("export", "x", "--to", "triton", "--repository", "y"), "triton"),
    ],
)
def test_a_missing_package_is_reported_with_its_extra(tmp_path, package, words, extra):
    done = without(package, *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert package in done.stderr
    assert f"pip install 'pipework[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_without_torch_predicts_with_its_engine(exported_run, tmp_path):
    done = without("torch", "predict", exported_run, "rain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("rain\n")


def without(package, *words, cwd):
    code = (
        f"import sys; sys.argv = ['pipe', *sys.argv[1:]]; sys.modules[{package!r}] = None\n"
        "from pipework.cli import main\nmain()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_standard_input_that_is_not_utf_8_is_reported(exported_run):
    done = pipe("predict", exported_run, stdin=b"ok\n\xff\n")
    assert done.returncode == 2
    assert "standard input:2: not UTF-8" in done.stderr


def test_a_bug_shows_its_traceback_and_exits_1(tmp_path):
    code = (
        "import pipework.run_folder.manifest, sys; sys.argv = ['pipe', 'show', 'x']\n"
        "pipework.run_folder.manifest.read_manifest = lambda run: 1 / 0\n"
        "from pipework.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.fixture
def broken_outputs():
    """Descriptors that cannot be written: a full disk, a pipe without reader, a read-only file."""
    reader, pipe_without_reader = os.pipe()
    os.close(reader)
    read_only = os.open(os.devnull, os.O_RDONLY)
    with Path("/dev/full").open("w") as full:
        yield {
            "No space left on device": full.fileno(),
            "": pipe_without_reader,
            "Bad file descriptor": read_only,
        }
    os.close(pipe_without_reader)
    os.close(read_only)


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "words",
    [
        ("predict", "RUN"),
        pytest.param(("show", "RUN"), marks=pytest.mark.thorough),
        pytest.param(("predict", "RUN", "rain"), marks=pytest.mark.slow),
        pytest.param(("show", "RUN", "--json"), marks=pytest.mark.slow),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(
    exported_run, broken_outputs, words, unbuffered
):
    command = [PIPE, *(exported_run if word == "RUN" else word for word in words)]
    for reason, stdout in broken_outputs.items():
        done = subprocess.run(
            command,
            input="rain\n" * 9_000 if words == ("predict", "RUN") else "",
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        assert done.returncode == 2, done.stderr
        errors = [line for line in done.stderr.splitlines() if not line.startswith("hint:")]
        expected = f"error: standard output cannot be written: {reason}"
        assert errors == ([expected] if reason else [])


@pytest.mark.parametrize("words", [("show", "RUN", "--json"), ("--help",)])
def test_a_closed_output_is_one_line(exported_run, words):
    command = [str(exported_run) if word == "RUN" else word for word in words]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", PIPE, *command],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output cannot be written: Bad file descriptor\n")


def test_output_is_not_delayed_if_python_is_unbuffered(exported_run):
    with subprocess.Popen(
        [PIPE, "predict", exported_run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        process.stdin.write(b"rain\n" * 4096)
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"rain\n")
        process.stdin.close()
        process.stdout.read()
