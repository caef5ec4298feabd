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
from tests.paper_gpu.device import PaperGpu, missing

ROOT = Path(__file__).parents[3]
SPLITS = ("train_full", "dev", "test-labeled")
OUTER = ("MAKE", "MFLAGS", "ONLY")  # variables of a make that started the tests


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
        paper = shlex.join(["env", *(f"{name}={environment[name]}" for name in names)])
    work = folder / "work"
    return ("DRY=1", f"DATA={folder}", f"MINILM={folder / 'minilm'}", f"WORK={work}", f"PAPER={paper}")


def test_the_dry_run_passes_or_skips_each_step(places):
    done = make(*places, "gpu")
    report = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
