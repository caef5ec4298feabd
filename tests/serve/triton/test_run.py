"""`pipe serve --backend triton`, with the real tritonserver where one is installed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from pipework.errors import ConfigError, MissingDependencyError
from pipework.export.config import TritonSettings
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.serve.config import LimitSettings, RepositorySettings, SecuritySettings, ServeSettings
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.run import check_repository, check_settings

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def repository(regression_run, tmp_path_factory):
    """A model that loads, and one whose tokenizer was changed."""
    try:
        Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    folder = tmp_path_factory.mktemp("triton") / "repository"
    for name in ("value", "broken"):
        add_version(
            regression_run, folder, TritonSettings(name=name), EngineChoice(), NullProgress()
        )
    tokenizer = folder / "broken" / "1" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    return folder


@contextmanager
def served(repository, *words):
    command = [sys.executable, "-m", "pipework.cli", "serve", repository, "--backend", "triton"]
    command += ["--port", "0", "--grpc-port", "0", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as process:
        alarm = Timer(300, process.kill)  # bounds the time to read its output
        alarm.start()
        try:
            yield process
        finally:
            alarm.cancel()
            process.kill()


def until_serving(process):
    lines = []
    while not lines or not lines[-1].startswith("serving on "):
        lines.append(process.stdout.readline().rstrip("\n"))
        assert lines[-1], process.communicate()[1]
    return lines


def refused(call, *given):
    with pytest.raises(InferenceServerException) as raised:
        call(*given)
    return raised.value.message()


def test_a_repository_is_served_with_its_states_shown_and_restricted_apis(repository, tmp_path):
    """A new version is loaded and reported, and clients cannot load or unload models."""
    mine = shutil.copytree(repository, tmp_path / "repository")
    with served(mine, "--set", "models.poll_s=1") as process:
        broken, value, metrics, serving = until_serving(process)
        assert re.match(r"broken 1: UNAVAILABLE, .*tokenizer\.json changed: sha256", broken)
        assert value == "value 1: READY"
        url, grpc = re.fullmatch(r"serving on (\S+) and gRPC on (\S+)", serving).groups()
        assert "nv_inference" in httpx.get(metrics.removeprefix("metrics on ")).text
        assert httpx.get(f"{url}/v2/health/ready").status_code == 200
        for path in ("models/value/unload", "index"):
            assert httpx.post(f"{url}/v2/repository/{path}", json={}).status_code == 403
        with triton.InferenceServerClient(grpc) as client:
            assert "restricted" in refused(client.unload_model, "value")
            assert "restricted" in refused(client.get_system_shared_memory_status)
            assert "restricted" in refused(client.get_log_settings)
        shutil.copytree(mine / "value" / "1", tmp_path / "2")
        (tmp_path / "2").rename(mine / "value" / "2")
        assert process.stdout.readline() == "value 2: READY\n"
        shutil.copytree(mine / "broken" / "1", mine / "value" / "3")
        assert process.stdout.readline().startswith("value 3: UNAVAILABLE, ")
        text = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["rain"]}
        for version in ("1", "2"):
            model = f"{url}/v2/models/value/versions/{version}"
            assert httpx.post(f"{model}/infer", json={"inputs": [text]}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
        assert process.communicate() == ("", "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2/health/live")


@pytest.mark.thorough
def test_with_control_clients_load_and_unload(repository):
    with served(repository, "--set", "models.control=true") as process:
        url = until_serving(process)[-1].split()[2]
        done = httpx.post(f"{url}/v2/repository/models/value/unload", json={}, timeout=60)
        assert done.status_code == 200
        assert process.stdout.readline() == "value 1: UNAVAILABLE, unloaded\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0
        process.communicate()


def children(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_an_unexpected_exit_is_reported_with_the_end_of_the_log(
    repository,
):
    with served(repository) as process:
        until_serving(process)
        (child,) = children(process)
        os.kill(int(child), signal.SIGKILL)
        assert process.wait(180) == 2
        said = process.communicate()[1]
    (line,) = (one for one in said.splitlines() if one.startswith("error:"))
    assert line.startswith("error: tritonserver exited unexpectedly, by signal 9: ")
    assert "Started HTTPService" in said
    assert "Traceback" not in said


def test_serving_fails_when_no_version_can_be_loaded(repository, tmp_path):
    shutil.copytree(repository / "broken", tmp_path / "all" / "broken")
    with served(tmp_path / "all") as process:
        assert process.wait(180) == 2
        out, said = process.communicate()
    assert out == ""
    assert "error: tritonserver loaded no version of any model" in said
    assert "broken 1: UNAVAILABLE, " in said


def test_a_folder_that_is_not_a_repository_is_refused_with_the_export_command(
    regression_run, tmp_path
):
    with pytest.raises(ConfigError, match="is a run folder, but tritonserver needs a") as raised:
        check_repository(regression_run)
    assert raised.value.hint.startswith(f"create it: pipe export {regression_run} --to triton")
    with pytest.raises(ConfigError, match="is not a folder"):
        check_repository(tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match=r"has no models: none of its folders has a config\.pbtxt"
    ):
        check_repository(tmp_path)


def test_a_setting_that_triton_does_not_support_is_refused(monkeypatch):
    public = SecuritySettings(public_grpc=True)
    check_settings(
        ServeSettings(grace_s=3, models=RepositorySettings(control=True), security=public)
    )
    with pytest.raises(ConfigError, match=r"does not support the setting limits\.texts"):
        check_settings(ServeSettings(limits=LimitSettings(texts=3)))
    with pytest.raises(ConfigError, match=r"the setting security\.keys_file") as raised:
        check_settings(ServeSettings(security=SecuritySettings(keys_file=Path("keys"))))
    assert "omit --backend triton" in raised.value.hint
    monkeypatch.setenv("PIPEWORK_API_KEYS", "secret")
    with pytest.raises(ConfigError, match="tritonserver does not check API keys") as raised:
        check_settings(ServeSettings())
    assert "secret" not in str(raised.value)
