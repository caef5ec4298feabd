"""Jobs that write to an object store: moto, a server with the protocol of S3."""

import json
from pathlib import Path

import pytest

from pipework.progress import NullProgress
from pipework.serve.bulk.job import BulkOptions, score_files
from tests.serve.bulk.test_cluster import run_program
from tests.serve.bulk.test_job import GROUPS, snapshot, write_parquet

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, os, random, signal, subprocess, sys, time
from pathlib import Path
from urllib.request import Request, urlopen

import s3fs
from moto.server import ThreadedMotoServer


def start(out, *words):
    line = [sys.executable, "-P", "-m", "pipework.cli", "predict", "run", "--in", "in"]
    line += ["--keep", "text", "--out", out, *words]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process):
    out, error = process.communicate()
    return [process.returncode, out, error]


def objects():
    store.invalidate_cache()
    return len(store.find("bucket/out"))


def wait_for_object(process):
    before = objects()
    while process.poll() is None and objects() <= before:
        time.sleep(0.01)


def download(folder):
    store.invalidate_cache()
    store.get("bucket/out", folder, recursive=True)


def killed(kills):
    rng, kill = random.Random(5), 0
    while kill < int(kills):
        process = start("s3://bucket/out")
        wait_for_object(process)
        time.sleep(rng.random() * 0.4)
        process.kill()
        ended = end(process)
        if ended[0] == 0:  # the job was finished: start it again
            store.rm("bucket/out", recursive=True)
            continue
        download(f"kill{kill}")
        kill += 1
    yield end(start("s3://bucket/out"))
    yield end(start("s3://bucket/out"))


def stopped():
    process = start("s3://bucket/out")
    wait_for_object(process)
    process.send_signal(signal.SIGINT)
    yield end(process)
    yield end(start("s3://bucket/out"))


def shards():
    processes = [start("s3://bucket/out", "--shard", f"{shard}/2") for shard in (1, 2)]
    yield from map(end, processes)


def refused():
    yield end(start("s3://nowhere/out"))
    yield end(start("s3://not a name/out"))
    url, plain = os.environ["AWS_ENDPOINT_URL"], {"Content-Type": "text/plain"}
    urlopen(Request(f"{url}/moto-api/reset-auth", b"0", plain)).close()  # check each request
    yield end(start("s3://bucket/out"))


def ray():
    yield end(start("s3://bucket/out", "--on", "ray"))


if __name__ == "__main__":
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port())}
    store = s3fs.S3FileSystem()
    store.mkdir("bucket")
    step, *arguments = sys.argv[1:]
    ended = [*globals()[step](*arguments)]
    if step == "refused":
        server.stop()
        ended.append(end(start("s3://bucket/out")))
    else:
        download("out")
        server.stop()
    Path("result.json").write_text(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def deep_run(make_run) -> Path:
    """A model that needs a second for the job, so that it can be interrupted."""
    return make_run(layers=3)


@pytest.fixture
def local(deep_run, tmp_path) -> dict[str, bytes]:
    """The files of the same job in a folder of this machine, without an interruption."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        write_parquet(tmp_path / "in" / f"rows{number}.parquet", GROUPS, number)
    (tmp_path / "in" / "rejected.jsonl").write_text('{"text": "rain", "id": 1}\nrain\n')
    (tmp_path / "run").symlink_to(deep_run)
    options = BulkOptions(pattern=str(tmp_path / "in"), out=tmp_path / "local", keep=["text"])
    score_files(tmp_path / "run", options, NullProgress())
    return snapshot(tmp_path / "local")


def run_step(python: str, folder: Path, *words: object) -> list[tuple[int, str, str]]:
    """Run a step of the program; return exit code, output and errors of its commands."""
    run_program(python, PROGRAM, folder, *words, timeout_s=1200)
    return [tuple(ended) for ended in json.loads((folder / "result.json").read_text())]


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_a_job_that_is_killed_continues(cluster_python, local, tmp_path, kills):
    continued, again = run_step(cluster_python, tmp_path, "killed", kills)
    for kill in range(kills):
        files = snapshot(tmp_path / f"kill{kill}")
        finished = {Path(name).stem for name in files if name.startswith("finished/")}
        parts = {Path(name).stem for name in files if name.startswith("parts/")}
        assert finished <= parts
        assert files.items() <= local.items()
    assert (continued[0], again[0]) == (0, 0), continued[2] + again[2]
    assert "scored: s3://bucket/out, 6,483 rows in 9 work items (9 were finished" in again[1]
    assert snapshot(tmp_path / "out") == local


def test_two_shards_at_once_write_what_one_process_writes(cluster_python, local, tmp_path):
    shards = run_step(cluster_python, tmp_path, "shards")
    assert [code for code, *_ in shards] == [0, 0], shards
    assert snapshot(tmp_path / "out") == local


def test_ctrl_c_is_one_line_and_the_job_continues(cluster_python, local, tmp_path):
    stopped, resumed = run_step(cluster_python, tmp_path, "stopped")
    assert stopped[0] == 130
    assert "error: the command was stopped\nhint: the same command continues" in stopped[2]
    assert "Traceback" not in stopped[2]
    assert resumed[0] == 0, resumed[2]
    assert snapshot(tmp_path / "out") == local


@pytest.mark.usefixtures("local")
def test_the_errors_of_the_store_are_one_line(cluster_python, tmp_path):
    ended = run_step(cluster_python, tmp_path, "refused")
    address, again = "check the address and the permissions", "run the same command again"
    for (code, _, errors), (expected, hint) in zip(
        ended,
        (
            ("s3://nowhere/out: The specified bucket does not exist\n", address),
            ("s3://not a name/out: Parameter validation failed: Invalid bucket name", address),
            ("s3://bucket/out: The AWS Access Key Id you provided does not exist", address),
            ('s3://bucket/out: Could not connect to the endpoint URL: "http://127.0.0', again),
        ),
        strict=True,
    ):
        assert code == (2 if hint == address else 75), errors
        assert f"error: --out {expected}" in errors
        assert f"hint: {hint}" in errors
        assert "Traceback" not in errors


def test_a_job_on_ray_writes_to_an_object_store(cluster_python, local, tmp_path):
    ((code, output, errors),) = run_step(cluster_python, tmp_path, "ray")
    assert code == 0, errors
    assert "scored: s3://bucket/out, 6,483 rows in 9 work items" in output
    assert snapshot(tmp_path / "out") == local
