"""OCI images: the layout, a registry on loopback, and the run that comes back."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import closing

import pytest

from pipework.data.examples import Example
from pipework.export.config import ExportSettings
from pipework.export.inference import predict_run
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import read_manifest
from tests.commands import pipe
from tests.export.conftest import ENGINES

TEXTS = [Example(text=text) for text in ("The match went to extra time", "明天下午有雷阵雨")]
PACKED = ENGINES["onnx-fp32-packed"]


@pytest.fixture(scope="module")
def exported(exported_run, tmp_path_factory):
    """A run with two engines."""
    run = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(exported_run, run)
    export(run, NullProgress(), [PACKED], settings=ExportSettings(speed_s=0, dev_rows=60))
    return run


@pytest.fixture(scope="module")
def image(exported, tmp_path_factory):
    """An image layout; read it only."""
    folder = tmp_path_factory.mktemp("oci") / "image"
    done = pipe("publish", exported, "--to", f"oci:{folder}")
    assert done.returncode == 0, done.stderr
    assert f"published: oci:{folder} with onnx-fp32, onnx-fp32-packed, sha256:" in " ".join(
        done.stdout.split()
    )
    return folder


def blob(folder, descriptor):
    digest = descriptor["digest"].removeprefix("sha256:")
    path = folder / "blobs/sha256" / digest
    assert file_digest(path) == digest
    assert path.stat().st_size == descriptor["size"]
    return path


def manifest_of(folder):
    (descriptor,) = json.loads((folder / "index.json").read_text())["manifests"]
    return json.loads(blob(folder, descriptor).read_text())


def unpack(folder, target):
    """Unpack the layers of an image as a container runtime does."""
    target.mkdir(exist_ok=True)
    for layer in manifest_of(folder)["layers"]:
        # The argument `filter` of tarfile needs Python 3.11.4.
        subprocess.run(["tar", "-xf", blob(folder, layer), "-C", target], check=True)
    return target / "models"


def test_each_file_has_its_digest_and_each_engine_its_layer(image):
    manifest = manifest_of(image)
    config = json.loads(blob(image, manifest["config"]).read_text())
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert len(manifest["layers"]) == 3
    for name in ("onnx-fp32", "onnx-fp32-packed"):
        assert manifest["annotations"][f"pipework.engine.{name}"].startswith("proven on ")
    known = {path.name for path in (image / "blobs/sha256").iterdir()}
    assert len(known) == 5


def test_the_same_run_gives_the_same_digest(exported, image, tmp_path):
    again = tmp_path / "again"
    assert pipe("publish", exported, "--to", f"oci:{again}").returncode == 0
    assert (again / "index.json").read_bytes() == (image / "index.json").read_bytes()


def test_the_image_predicts_as_the_run_and_has_no_absolute_path(exported, image, tmp_path):
    models = unpack(image, tmp_path)
    assert not (models / "checkpoint").exists()
    for name in ("onnx-fp32", "onnx-fp32-packed"):
        assert list(predict_run(models, TEXTS, name)) == list(predict_run(exported, TEXTS, name))
    text = (models / "manifest.json").read_text()
    for split in read_manifest(exported).data.splits.values():
        assert split.path.startswith("/")
        assert split.path not in text


@pytest.fixture
def registry(tmp_path):
    """The address of a registry on loopback, with storage in a temporary folder."""
    for program in ("docker-registry", "skopeo"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is absent")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'storage'}}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    with (tmp_path / "registry.log").open("w") as log:
        server = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
    try:
        host, _, port = address.partition(":")
        while server.poll() is None:
            with closing(socket.socket()) as trial:
                if trial.connect_ex((host, int(port))) == 0:
                    break
            time.sleep(0.05)
        assert server.poll() is None, (tmp_path / "registry.log").read_text()
        yield address
    finally:
        server.terminate()
        server.wait()


def test_an_image_comes_back_from_a_registry(exported, image, registry, tmp_path):
    done = pipe("publish", exported, "--to", f"oci://{registry}/topics:1")
    assert done.returncode == 0, done.stderr
    back = tmp_path / "back"
    subprocess.run(
        [
            "skopeo",
            "copy",
            "--preserve-digests",
            "--src-tls-verify=false",
            f"docker://{registry}/topics:1",
            f"oci:{back}",
        ],
        check=True,
        capture_output=True,
    )
    assert manifest_of(back) == manifest_of(image)
    models = unpack(back, tmp_path / "unpacked")
    assert list(predict_run(models, TEXTS, "onnx-fp32")) == list(
        predict_run(exported, TEXTS, "onnx-fp32")
    )


def test_a_registry_that_does_not_answer_is_named(exported, closed_port):
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is absent")
    done = pipe("publish", exported, "--to", f"oci://127.0.0.1:{closed_port}/topics:1")
    assert done.returncode == 2
    assert f"error: skopeo cannot push to 127.0.0.1:{closed_port}/topics:1: " in done.stderr


def test_a_missing_skopeo_is_named(exported, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = pipe("publish", exported, "--to", "oci://localhost:5000/topics:1")
    assert done.returncode == 2
    assert "error: skopeo, which pushes the image, is not installed" in done.stderr
    assert "hint: apt-get install skopeo" in done.stderr


def test_a_reference_without_a_host_is_refused_also_without_skopeo(exported, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = pipe("publish", exported, "--to", "oci://topics")
    assert done.returncode == 2
    assert "error: --to oci://topics: expected oci://HOST/NAME:TAG" in done.stderr


def test_a_run_without_a_proven_engine_is_refused(trained_run, tmp_path):
    done = pipe("publish", trained_run, "--to", f"oci:{tmp_path / 'image'}")
    assert f"error: {trained_run} has no proven engine" in done.stderr
    assert list(tmp_path.iterdir()) == []
