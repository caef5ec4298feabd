"""The images of deploy/Containerfile, built here: their size, their content, and their server."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipework.data.examples import Example
from pipework.export.config import ExportSettings
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.cuda_libraries import DRIVER
from pipework.text.encoding import open_encoder
from pipework.train.model.checkpoint_engine import open_reference
from tests.deploy.container import Container, ContainerSpec, Mount, pod_container, run_container
from tests.deploy.image import ROOT, Image, file_bytes
from tests.serve.bulk.test_job import part_files, write_parquet
from tests.serve.conftest import LABELS, build_run

LIMIT_BYTES = {"image": 600_000_000, "s3_image": 600_000_000, "cuda_image": 3_200_000_000}
READY_S = 60
USER = "10001"
MODELS = "/mnt/models"
PACKAGES = "/opt/pipework/lib/python3.11/site-packages"
FRAMEWORKS = ("torch", "transformers", "tensorflow")
OPENVINO = Variant(format="openvino", precision=Precision.FP32, layout=Layout.PADDED)
TEXTS = ["the team won the match", "rain and wind on Sunday", "", "今天的电影 " * 40]
# Prints the distributions that the server's Python finds, the frameworks among their modules, and
# whether a file can be written.
PROBE = """
import importlib.metadata, importlib.util, json, os, sys
installed = {found.name: found.version for found in importlib.metadata.distributions()}
frameworks = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
writable = [path for path in ("/", "/opt", "/usr", "/home", "/tmp") if os.access(path, os.W_OK)]
print(json.dumps([installed, frameworks, writable, os.getuid()]))
"""
# Prints the libraries that ONNX Runtime does not find for a GPU.
MISSING = """
from pipework.serve.engines.cuda_libraries import load_cuda_libraries
print(*load_cuda_libraries())
"""
# A server with the protocol of S3. When its input ends, it writes the results of a job to a folder.
BUCKET = """
import sys
import s3fs
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
url = "http://{}:{}".format(*server.get_host_and_port())
store = s3fs.S3FileSystem(endpoint_url=url)
store.mkdir("bucket")
store.put("rows", "bucket", recursive=True)
print(url, flush=True)
sys.stdin.read()
store.invalidate_cache()
store.get("bucket/scored", "scored", recursive=True)
"""
# Installs a distribution with this name and an empty module.
PLANT_TORCH = r"""RUN mkdir /plant && cd /plant && touch torch.py \
 && printf '[project]\nname="torch"\nversion="1"\n' > pyproject.toml \
 && pip --python /opt/pipework/bin/python install --no-compile .
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served_run(exported_run, tmp_path_factory) -> Path:
    """A run of the sample with an engine of each runtime, readable by other users."""
    run = tmp_path_factory.mktemp("served") / "run"
    shutil.copytree(exported_run, run)
    export(run, NullProgress(), [OPENVINO], settings=ExportSettings(speed_s=0.2))
    for path in (run, *run.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return run


def spec(image: Image, *command: str, **folders: Path | None) -> ContainerSpec:
    """A container as the pods of deploy/ run it: read-only, with a folder for temporary files."""
    return ContainerSpec(
        root=image.root,
        command=command,
        environment=image.environment,
        user=int(image.config.get("User") or 0),
        mounts={path: Mount(source=folder) for path, folder in {"/tmp": None, **folders}.items()},
    )


def findings(image: Image, limit_bytes: int, folder: Path) -> list[str]:
    """Return what is wrong with an image."""
    output = run_container(spec(image, "python", "-c", PROBE, *FRAMEWORKS), folder)
    installed, frameworks, writable, user = json.loads(output)
    listed = json.loads((image.root / "opt/sbom.json").read_text())["components"]
    named = {component["name"]: component["version"] for component in listed}
    found = [f"the image contains {name}" for name in frameworks]
    found += [f"{name} can be written" for name in writable if name != "/tmp"]
    found += [f"the SBOM lacks {name}" for name in sorted({*installed} - {*named})]
    if installed != named:
        found.append("the SBOM differs from the installed packages")
    if image.size_bytes >= limit_bytes:
        found.append(f"{image.size_bytes:,} bytes, expected less than {limit_bytes:,}")
    if str(user) != USER:
        found.append(f"the server runs as user {user}, expected {USER}")
    return found


@pytest.mark.parametrize("name", LIMIT_BYTES)
def test_the_image_is_small_and_lists_its_content(request, name, tmp_path):
    image = request.getfixturevalue(name)
    assert findings(image, LIMIT_BYTES[name], tmp_path / "probe") == []
    assert image.config["Entrypoint"] == ["pipe"]
    assert {*image.config["ExposedPorts"]} == {"8000/tcp", "8001/tcp"}


@pytest.mark.parametrize("name", [*LIMIT_BYTES, "train_image"])
def test_the_page_states_the_measured_sizes(request, name):
    image = request.getfixturevalue(name)
    page = (ROOT / "deploy/README.md").read_text()
    row = re.escape(f"| `{image.name.rpartition('/')[2]}` |") + r".* \| (\d+) MB \| (\d+) MB \|"
    (stated,) = re.findall(row, page)
    measured = [image.size_bytes, file_bytes(image.root / "opt")]
    assert [int(size) for size in stated] == pytest.approx([n / 1e6 for n in measured], abs=15)


def missing_libraries(image: Image, folder: Path, **folders: Path | None) -> list[str]:
    return run_container(spec(image, "python", "-c", MISSING, **folders), folder).split()


def test_only_the_driver_is_missing_for_a_gpu(cuda_image, tmp_path):
    assert missing_libraries(cuda_image, tmp_path / "whole") == [DRIVER]
    without = {f"{PACKAGES}/nvidia/cudnn": None}
    assert missing_libraries(cuda_image, tmp_path / "less", **without) == ["libcudnn.so.9", DRIVER]


@pytest.mark.parametrize(
    ("line", "planted", "finding"),
    [
        ("USER 10001\n", "", "the server runs as user 0, expected 10001"),
        (
            "USER 10001\n",
            f"{PLANT_TORCH}USER 10001\n",
            "the image contains torch",
        ),
        (
            "COPY --from=build /opt /opt\n",
            "COPY --from=build /opt /opt\nRUN truncate -s 200M /opt/large\n",
            f"bytes, expected less than {LIMIT_BYTES['image']:,}",
        ),
    ],
    ids=["no USER", "torch", "large"],
)
def test_a_planted_fault_is_found(image, line, planted, finding, tmp_path):
    changed = image.builder.build("planted", line, planted)
    found = findings(changed, LIMIT_BYTES["image"], tmp_path / "probe")
    assert any(finding in each for each in found)


@pytest.fixture
def serve(served_run, tmp_path) -> Iterator[Callable[..., str]]:
    """A function that serves the run in a container and returns the URL."""
    containers = []

    def start(image: Image, *settings: str) -> str:
        words = ["serve", MODELS, "--port=0", "--grpc-port=0"]
        words += [f"--set={setting}" for setting in settings]
        command = spec(image, *image.config["Entrypoint"], *words, **{MODELS: served_run})
        containers.append(container := Container(command, tmp_path / "server"))
        ended_s = time.monotonic() + READY_S
        while not (found := re.findall(r"serving on (http://\S+)", container.output)):
            assert container.running, container.output
            assert time.monotonic() < ended_s, container.output
            time.sleep(0.1)
        return found[0]

    yield start
    for container in containers:
        container.terminate()
        assert container.wait(READY_S) == 0
        assert "Read-only file system" not in container.output


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("image", ["engine.name=onnx-fp32"]),
        ("image", ["engine.name=openvino-fp32"]),
        ("cuda_image", []),  # without a GPU and without OpenVINO: ONNX Runtime on the CPU
    ],
)
def test_the_server_answers_as_the_checkpoint_on_a_read_only_file_system(
    request, serve, served_run, name, settings
):
    url = serve(request.getfixturevalue(name), *settings)
    manifest = read_manifest(served_run)
    encodings = open_encoder(served_run, manifest).encode([Example(text=text) for text in TEXTS])
    with open_reference(served_run, manifest) as checkpoint:
        expected_NC = manifest.task.probabilities(checkpoint.infer(encodings).values)
    answer = httpx.post(f"{url}/v1/predict", json={"texts": TEXTS}, timeout=60)
    for row, prediction in zip(expected_NC, answer.json()["predictions"], strict=True):
        found = [prediction["scores"][label] for label in manifest.task.labels]
        assert found == pytest.approx(list(row), abs=1e-4)


def run_shards(image: Image, job: str, volumes: dict[str, Path | None], **variables: str) -> None:
    """Run the pods of a job of deploy/jobs with a run in the volume `models`."""
    text = (ROOT / "deploy/jobs" / job).read_text().replace("BUCKET", "bucket")
    spec = yaml.safe_load(text)["spec"]
    for index in range(spec["completions"]):
        variables["JOB_COMPLETION_INDEX"] = str(index)
        container = pod_container(spec["template"]["spec"], image, volumes, variables=variables)
        run_container(container, volumes["models"].with_name(f"pod-{index}"))


@pytest.fixture
def volumes(tmp_path, tmp_path_factory) -> dict[str, Path | None]:
    """A run, and a folder with rows, which users of the image may read and write."""
    published, data = tmp_path / "published", tmp_path / "data"
    shutil.copytree(build_run(tmp_path_factory), published / "models")
    (data / "rows").mkdir(parents=True)
    write_parquet(data / "rows" / "rows.parquet", [300] * 20)
    for path in (published, *published.rglob("*"), data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)  # fsGroup makes a volume writable
    return {"models": published, "data": data, "tmp": None}


def check_scored(folder: Path) -> None:
    """Check that the parts have all rows in their order."""
    scored = pa.concat_tables([pq.read_table(path) for path in part_files(folder)])
    assert scored["id"].to_pylist() == [*range(6000)]
    assert {*scored["predicted_label"].to_pylist()} == {*LABELS}


def test_the_shards_of_the_job_score_a_file_in_the_image(image, volumes):
    run_shards(image, "bulk.yaml", volumes)
    check_scored(volumes["data"] / "scored")


def test_the_shards_of_the_job_score_a_bucket_in_the_image(cluster_python, s3_image, volumes):
    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with subprocess.Popen(
        [cluster_python, "-c", BUCKET],
        cwd=volumes["data"],
        env={**os.environ, **access},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        url = server.stdout.readline().strip()
        run_shards(s3_image, "bulk-s3.yaml", volumes, AWS_ENDPOINT_URL=url, **access)
        server.communicate(timeout=READY_S)
    check_scored(volumes["data"] / "scored")
