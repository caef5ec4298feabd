"""Record the scaling query of the chart: `python -m pipework.benchmarks.studies.scaling --run RUN`.

A Prometheus scrapes a server each second, as the ServiceMonitor of the chart asks it to, and
evaluates the query of the ScaledObject, while `pipe bench` sends requests with many clients between
two times without load. The replicas follow from the values by the formula of Kubernetes.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import helm_python as helm
import httpx
import yaml

from pipework import console
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.results_schema.results import write_result
from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.records.experiment_results import (
    ReplicaLimits,
    ScalingResult,
    ScalingSample,
)
from pipework.benchmarks.studies.script import command, report_errors
from pipework.errors import ConfigError, PipeError
from pipework.git import CHECKOUT
from pipework.progress import Progress
from pipework.run_folder.files import check_writable
from pipework.run_folder.manifest import read_classifier

NAME, NAMESPACE = "topics", "text"  # of the release whose chart is rendered
INTERVAL = "1s"
VALUES = {
    "model": {"claim": "models"},
    "autoscaling": {"kind": "keda"},
    "serviceMonitor": {"enabled": True, "interval": INTERVAL},
}
WORDS, SAMPLE_S = 40, 1.0


def scaled_object() -> Mapping[str, Any]:
    """Return the spec of the ScaledObject of the chart."""
    with helm.Chart.load(str(CHECKOUT / "deploy/chart")) as chart:
        files = chart.render(VALUES, name=NAME, namespace=NAMESPACE)
    resources = (found for text in files.values() for found in yaml.safe_load_all(text) if found)
    return next(found["spec"] for found in resources if found["kind"] == "ScaledObject")


@contextmanager
def prometheus(address: str) -> Iterator[str]:
    """Run a Prometheus that scrapes a server with the labels of a pod of the chart; yield its URL.

    Raises:
        ConfigError: the program is absent.
        PipeError: it does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        message = "the program prometheus is absent"
        raise ConfigError(message, "install it: apt-get install prometheus")
    labels = {"namespace": NAMESPACE, "service": NAME}
    target = {"targets": [address], "labels": labels}
    config = {
        "global": {"scrape_interval": INTERVAL},
        "scrape_configs": [{"job_name": "pipework", "static_configs": [target]}],
    }
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        words = [program, f"--config.file={folder / 'config.yml'}"]
        words += [f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
            try:
                assert process.stderr is not None
                line = next((line for line in process.stderr if "Listening on" in line), None)
                if line is None:
                    message = "prometheus did not start"
                    raise PipeError(message, f"run it by hand: {' '.join(words)}")
                port = line.rpartition(":")[2].strip().strip('"')
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()


def evaluate(url: str, query: str) -> float:
    """Return the value of a query; 0 if there is no series yet."""
    response = httpx.get(f"{url}/api/v1/query", params={"query": query})
    response.raise_for_status()
    return sum(float(series["value"][1]) for series in response.json()["data"]["result"])


def sampled(
    url: str, query: str, clients: int, seconds: float, started: float
) -> Iterator[ScalingSample]:
    """Yield a sample each second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(SAMPLE_S)
        value = round(evaluate(url, query), 4)
        passed = round(time.monotonic() - started, 1)
        yield ScalingSample(seconds=passed, clients=clients, value=value)


def record(
    server: str, url: str, query: str, options: argparse.Namespace, progress: Progress
) -> Iterator[ScalingSample]:
    """Yield samples before, during and after the load."""
    started = time.monotonic()
    yield from sampled(url, query, 0, options.before_s, started)
    words = [sys.executable, "-P", "-m", "pipework.cli", "bench", server, "--words", str(WORDS)]
    words += ["--concurrency", str(options.clients), "--batch", str(options.batch)]
    words += ["--seconds", str(options.load_s)]
    progress.note(f"{options.clients} clients for {options.load_s:g} s")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as load:  # noqa: S603  (our own program)
        while load.poll() is None:
            yield from sampled(url, query, options.clients, SAMPLE_S, started)
    if load.returncode:
        message = f"pipe bench ended with exit code {load.returncode}"
        raise PipeError(message, "its error message is above this line")
    progress.note(f"no load for {options.after_s:g} s")
    yield from sampled(url, query, 0, options.after_s, started)


def measure(
    options: argparse.Namespace, words: tuple[str, ...], progress: Progress
) -> ScalingResult:
    """Record a run of the load.

    Raises:
        ConfigError: prometheus is absent.
        PipeError: the server or the load failed.
    """
    scaled = scaled_object()
    trigger = scaled["triggers"][0]["metadata"]
    with running_server(options.run) as server, prometheus(server.addresses["http"]) as url:
        samples = tuple(record(server.url, url, trigger["query"], options, progress))
    return ScalingResult(
        model=read_classifier(options.run).identity.name,
        query=trigger["query"],
        texts_per_request=options.batch,
        samples=samples,
        limits=ReplicaLimits(
            target=float(trigger["threshold"]),
            least=scaled["minReplicaCount"],
            most=scaled["maxReplicaCount"],
        ),
        command=words,
        provenance=provenance(),
    )


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Record the query and store the result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.scaling", description=__doc__
    )
    parser.add_argument("--run", type=Path, required=True, help="run folder with an engine")
    parser.add_argument("--clients", type=int, default=64, help="clients of the load")
    parser.add_argument("--batch", type=int, default=32, help="texts per request")
    parser.add_argument("--before-s", type=float, default=20, help="seconds before the load")
    parser.add_argument("--load-s", type=float, default=60, help="seconds of the load")
    parser.add_argument("--after-s", type=float, default=360, help="seconds after the load")
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options = parser.parse_args(arguments)
    progress = console.progress()
    try:
        check_writable(options.out)
        write_result(options.out, measure(options, command(parser, options), progress))
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
