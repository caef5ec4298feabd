"""`make gpu` runs the steps of benchmarks/studies/gpu.mk; its dry run needs no GPU."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipework.benchmarks.studies.matrix import random_encoder
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, sample_examples
from pipework.train.config.run_config import load_config
from tests.benchmarks.studies.make_options import options, options_of
from tests.paper_gpu.device import PaperGpu, missing

ROOT = Path(__file__).parents[3]
SPLITS = ("train_full", "dev", "test-labeled")
# Variables of a make, and of a continuous integration, that started the tests.
OUTER = ("MAKE", "MFLAGS", "ONLY", "AGAIN", "SKIPPED_TESTS")


def make(*words):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        ["make", "-f", "benchmarks/studies/gpu.mk", *map(str, words)],
        cwd=ROOT,
        env={**variables, "LC_ALL": "C", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return the arguments of a dry run: a tiny encoder, rows with two labels, a paper GPU."""
    folder = tmp_path_factory.mktemp("gpu")
    random_encoder(EncoderFamily.BERT, folder / "minilm")
    rows = [f"{row.text}\t{number % 2}" for number, row in enumerate(sample_examples())]
    (folder / "sst2").mkdir()
    for split in SPLITS:
        (folder / "sst2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))
    paper = ""
    if not missing():
        (folder / "paper").mkdir()
        environment = PaperGpu.compile(folder / "paper").environment()
        names = ("PYTHONPATH", "LD_LIBRARY_PATH", "PAPER_GPU_LOG")
        program = (sys.executable, "-m", "pipework")
        paper = shlex.join(["env", *(f"{name}={environment[name]}" for name in names), *program])
    work = folder / "work"
    return (
        "DRY=1",
        f"DATA={folder}",
        f"MINILM={folder / 'minilm'}",
        f"WORK={work}",
        f"PAPER={paper}",
    )


def skipped(report, name, reason):
    return f"{name}: skipped: {reason}" in report


def test_the_dry_run_passes_or_skips_each_step(places):
    done = make(*places, "gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    work = Path(places[3].partition("=")[2])
    report = (work / "results" / "report.txt").read_text().splitlines()
    assert not [line for line in report if ": failed" in line]
    passed = {line.partition(":")[0] for line in report if ": passed in" in line}
    assert {"train-minilm-fp32", "ddp-2", "resume", "trainer-minilm-fp32"} <= passed
    assert {"torch-minilm-fp16", "speed-minilm-fp16-squad", "served-workers"} <= passed
    assert skipped(report, "gpu-tests", "the tests exist; they need a CUDA device")
    assert skipped(report, "export-minilm-fp16-fp16-varlen", "built; the engine needs a GPU")
    assert skipped(report, "train-bert-large", "a step with the same command ran")
    if missing():
        assert skipped(report, "paper-export", "there is no paper GPU")
    else:
        assert {"doctor", "paper-export"} <= passed


def commands(*words):
    """Return the commands of a measurement on a GPU, one per line."""
    done = make("-n", "WHEELS=wheels", "DATA=data", "MINILM=weights", "WORK=work", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("\\\n", " ").splitlines()


def test_its_commands_use_existing_options_and_settings():
    calls = [line.strip() for line in commands("steps")]
    trained = [
        shlex.split(re.split("[&|]", line)[0]) for line in calls if line.startswith("pipe train")
    ]
    assert len(trained) == 8
    for words in trained:
        load_config(words[2], [words[n + 1] for n, word in enumerate(words) if word == "--set"])
    programs = [re.match(r"(?:pipe|python -P -m) (\S+) (.*)", line) for line in calls]
    found = [(match[1], match[2]) for match in programs if match]
    assert {"export", "bench", "pipework.benchmarks.studies.torch_speed"} <= {
        name for name, _ in found
    }
    for program, words in found:
        own, _, of_server = words.partition(" -- ")
        assert options(own) <= options_of(program), f"{program} {words}"
        assert options(of_server) <= options_of("serve")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("DATA=data", "MINILM=weights"), "expected WHEELS, DATA and MINILM"),
        (("ONLY=doctors",), "ONLY: unknown step doctors. Known steps: doctor gpu-tests"),
        (("gpu-join",), "expected PARTS and WHEELS"),
    ],
)
def test_missing_and_unknown_arguments_are_reported(words, message):
    done = make(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_failed_step_does_not_stop_the_others_and_a_passed_one_is_not_repeated(places, tmp_path):
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "resume").write_text("7\n")
    only = "ONLY=doctor measure-minilm-fp16 resume"
    done = make(*places[:2], "MINILM=absent", f"WORK={tmp_path}", "PAPER=false", only, "gpu")
    assert done.returncode == 2
    assert f"doctor: failed: exit code 1, see {tmp_path}/logs/doctor.log" in done.stdout
    assert "train-minilm-fp16: failed: exit code 1" in done.stdout
    report = (tmp_path / "results" / "report.txt").read_text().splitlines()
    assert "measure-minilm-fp16: failed: not run, because a step that it needs has failed" in report
    assert "resume: passed in 7 s" in report


@pytest.fixture
def parts(tmp_path):
    """Return a folder with the parts of a folder of wheels."""
    folder = tmp_path / "parts"
    folder.mkdir()
    (tmp_path / "a.whl").write_bytes(b"wheel" * 1000)
    command = f"""
        tar c -C {tmp_path} a.whl | split -b 4096 - {folder}/wheels.tar.
        cd {folder}
        sha256sum wheels.tar.* > SHA256SUMS
    """
    subprocess.run(["bash", "-euc", command], check=True)
    return folder


def test_parts_are_joined(parts, tmp_path):
    done = make("gpu-join", f"PARTS={parts}", f"WHEELS={tmp_path / 'wheels'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "wheels" / "a.whl").read_bytes() == (tmp_path / "a.whl").read_bytes()


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_a_damaged_or_missing_part_is_reported(parts, tmp_path, fault):
    part = parts / "wheels.tar.ab"
    if fault == "damaged":
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    else:
        part.unlink()
    done = make("gpu-join", f"PARTS={parts}", f"WHEELS={tmp_path / 'wheels'}")
    assert done.returncode == 2
    assert f"gpu-join: {part} is {fault}: copy it again" in done.stderr
    assert not (tmp_path / "wheels").exists()
