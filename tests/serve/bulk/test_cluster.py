"""Jobs on a Ray cluster and of an object store; the examples of serve/README.md.

The server with the protocol of S3 is moto.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from pipework.machine import cpu_limit
from pipework.progress import NullProgress
from pipework.serve.bulk.job import BulkOptions, score_files
from tests.serve.bulk.test_job import GROUPS, part_files, parts, write_parquet

ROOT = Path(__file__).parents[3]
SCHEMA = "id long, text string, when date, predicted_label string, predicted_score float"
PROGRAMS = {
    "ray": """
import ray
ray.init(num_cpus=4, include_dashboard=False)
ray_rows = ray.data.read_parquet("in")
scored = EXAMPLE
rows = scored.select_columns(["id", "predicted_label", "error"]).take_all()
""",
    "spark": f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark_rows = spark.read.parquet("in")
schema = "{SCHEMA}, truncated boolean, error string"
scored = EXAMPLE
rows = [row.asDict() for row in scored.select("id", "predicted_label", "error").collect()]
""",
    "dask": """
import dask.dataframe
dask_rows = dask.dataframe.read_parquet("in")
scored = EXAMPLE
rows = scored[["id", "predicted_label", "error"]].compute().to_dict("records")
""",
}

CLUSTER = """
import json, os, subprocess, sys, threading, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
import psutil  # of Ray

from pipework.machine import cpu_limit
from pipework.progress import NullProgress
from pipework.serve.bulk import executors
from pipework.serve.bulk.job import BulkOptions, score_files


class Notes(NullProgress):
    most = rows = 0

    def advance(self, count, figures=None):
        self.rows += count


def finished():
    return len([*Path("out/finished").glob("*.json")])


def end_node(cluster, node):
    while finished() < 3:
        time.sleep(0.01)
    cluster.remove_node(node, allow_graceful=False)  # SIGKILL
    result["finished_at_kill"] = finished()


def end_first_server():
    while True:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "--mode=specific-server" in words and f"--address={cluster.address}" in words:
                process.kill()
                result["server_killed"] = True
                return
        time.sleep(0.05)


if __name__ == "__main__":
    port = int(sys.argv[1])
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": port}
    cluster, result = Cluster(initialize_head=True, head_node_args=head), {}
    first, second = (cluster.add_node(num_cpus=int(sys.argv[2])) for _ in range(2))
    os.environ["RAY_ADDRESS"] = cluster.address
    killer = threading.Thread(target=end_node, args=(cluster, first), daemon=True)
    killer.start()
    progress, options = Notes(), BulkOptions(pattern="in", out=Path("out"), on="ray")
    summary = score_files(Path("run"), options, progress)
    killer.join()
    result |= {"items": summary.items, "skipped": summary.skipped, "rows": summary.counts.rows}
    result |= {"progress": progress.rows, "shut": not ray.is_initialized()}
    again = score_files(Path("run"), options, NullProgress())
    result |= {"again": again.skipped, "nodes": len(cluster.list_all_nodes())}
    words = [sys.executable, "-P", "-m", "pipework.cli", "predict", "run", "--in", "in"]
    words += ["--out", "client", "--on", f"ray://127.0.0.1:{port}"]
    first = threading.Thread(target=end_first_server, daemon=True)
    first.start()
    command = subprocess.run(words, capture_output=True, text=True)
    result |= {"code": command.returncode, "out": command.stdout, "error": command.stderr}
    cluster.shutdown()
    Path("result.json").write_text(json.dumps(result))
"""

STORE = """
import json, os
from pathlib import Path

import s3fs
from moto.server import ThreadedMotoServer

from pipework.errors import PipeError
from pipework.progress import NullProgress
from pipework.serve.bulk.job import BulkOptions, score_files


def score(pattern, out):
    options = BulkOptions(pattern=pattern, out=Path(out), keep=["id"])
    try:
        summary = score_files(Path("run"), options, NullProgress())
    except PipeError as error:
        return f"{type(error).__name__}: {error}"
    return [summary.items, summary.skipped]


if __name__ == "__main__":
    server, result = ThreadedMotoServer("127.0.0.1", 0, verbose=False), {}
    server.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port())}
    store = s3fs.S3FileSystem()
    store.mkdir("bucket")
    store.put("in", "bucket", recursive=True)
    result["folder"] = score("s3://bucket/in", "out")
    result["again"] = score("s3://bucket/in", "out")
    result["pattern"] = score("s3://bucket/in/*.parquet", "pattern")
    result["absent"] = score("s3://nowhere/in", "absent")
    store.put("in/more.parquet", "bucket/in/deep/rows.parquet")
    store.invalidate_cache()
    result["changed"] = score("s3://bucket/in", "out")
    server.stop()
    store.invalidate_cache()
    result["stopped"] = score("s3://bucket/in", "stopped")
    Path("result.json").write_text(json.dumps(result))
"""


def run_program(
    python: str, program: str, folder: Path, *words: object, timeout_s: float = 480
) -> None:
    """Run a program in a folder; its workers find pipework, too."""
    (folder / "program.py").write_text(program)
    command = [python, "program.py", *map(str, words)]
    # In a folder of its own, Ray finds no cluster of another test. It is not tmp_path: the path of
    # a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ray:
        paths = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python, "RAY_TMPDIR": ray}
        # Seconds that a Ray client server waits for its process, and for a client to come back.
        waits = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "20"}
        waits["RAY_CLIENT_RECONNECT_GRACE_PERIOD"] = "1"
        environment = {**os.environ, **paths, **waits}
        environment.pop("RAY_ADDRESS", None)
        try:
            subprocess.run(command, cwd=folder, env=environment, check=True, timeout=timeout_s)
        finally:
            end_processes("RAY_TMPDIR", ray)


def end_processes(variable: str, value: str) -> None:
    """Kill the processes with a variable in their environment, of which some have no parent."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                process.kill()


def example(name: str) -> str:
    """Return the line of the README for a program."""
    (line,) = re.findall(
        rf"^{name}_rows\..*$", (ROOT / "serve/README.md").read_text(), re.MULTILINE
    )
    return line


@pytest.mark.cluster
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_predicts_as_a_bulk_job(cluster_python, run, tmp_path, name):
    if name == "spark" and not shutil.which("java"):
        pytest.skip("java is absent: apt-get install default-jre-headless")
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "rows.parquet", GROUPS)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(run)
    program = PROGRAMS[name].replace("EXAMPLE", example(name))
    run_program(
        cluster_python,
        "import json\n"
        "from pathlib import Path\n"
        "from pipework.serve.bulk.scorer import Scorer\n"
        'if __name__ == "__main__":\n'
        + "".join(f"    {line}\n" for line in program.splitlines())
        + '    Path("rows.json").write_text(json.dumps(rows, default=str))\n',
        tmp_path,
    )
    rows = json.loads((tmp_path / "rows.json").read_text())
    options = BulkOptions(pattern=str(tmp_path / "in"), out=tmp_path / "out", keep=["id"])
    score_files(run, options, NullProgress())
    parts = (pq.read_table(path) for path in part_files(tmp_path / "out"))
    expected = {row["id"]: row["predicted_label"] for part in parts for row in part.to_pylist()}
    assert {row["id"]: row["predicted_label"] for row in rows} == expected
    assert len(rows) == len(expected) == sum(GROUPS)
    assert {row["error"] for row in rows} <= {None, "None"}


@pytest.mark.cluster
def test_a_job_on_a_ray_cluster_survives_a_killed_node(cluster_python, make_run, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        write_parquet(tmp_path / "in" / f"rows{number}.parquet", GROUPS, number)
    (tmp_path / "run").symlink_to(make_run(layers=3))
    options = BulkOptions(pattern=str(tmp_path / "in"), out=tmp_path / "here")
    score_files(tmp_path / "run", options, NullProgress())
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    run_program(cluster_python, CLUSTER, tmp_path, port, cpu_limit())
    result = json.loads((tmp_path / "result.json").read_text())
    assert 3 <= result["finished_at_kill"] < 12
    assert (result["items"], result["skipped"], result["again"]) == (12, 0, 12)
    assert result["rows"] == result["progress"] == 3 * sum(GROUPS)
    assert result["nodes"] == 2  # the head, and one of two
    assert result["shut"]
    expected = parts(tmp_path / "here")
    assert len(expected) == 12
    assert parts(tmp_path / "out") == expected
    assert result["server_killed"]
    assert (result["code"], result["error"].count("error:")) == (0, 0), result["error"]
    assert "scored: client, 9,723 rows in 12 work items (0 were finished before)" in result["out"]
    assert parts(tmp_path / "client") == expected


@pytest.mark.cluster
def test_files_of_an_object_store_are_scored_as_local_files(cluster_python, run, tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    write_parquet(tmp_path / "in" / "rows.parquet", GROUPS)
    (tmp_path / "in" / "deep" / "rows.parquet").write_bytes(
        (tmp_path / "in" / "rows.parquet").read_bytes()
    )
    write_parquet(tmp_path / "in" / "more.parquet", [5, 5], seed=1)
    (tmp_path / "run").symlink_to(run)
    options = BulkOptions(pattern=str(tmp_path / "in"), out=tmp_path / "here", keep=["id"])
    score_files(run, options, NullProgress())
    run_program(cluster_python, STORE, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["folder"], result["again"], result["pattern"]) == ([10, 0], [10, 10], [6, 0])
    assert parts(tmp_path / "out") == parts(tmp_path / "here")
    assert result["absent"] == "ConfigError: --in s3://nowhere/in: no file found"
    assert "deep/rows.parquet has changed since the job was started" in result["changed"]
    assert result["stopped"].startswith(
        "TransientError: --in s3://bucket/in cannot be read: Could not"
    )
    assert not (tmp_path / "stopped").exists()
