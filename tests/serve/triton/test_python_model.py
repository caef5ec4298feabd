"""On the real tritonserver: the kinds of task and input that a text model has."""

import importlib
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from pipework.errors import MissingDependencyError
from pipework.export.config import TritonSettings
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.wire.text_tensors import OutputTensors
from tests.serve.conftest import with_windows


@pytest.fixture(scope="module")
def repository(pair_run, entity_run, multi_run, regression_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton") / "repository"
    runs = {"pair": pair_run, "marked": entity_run, "several": multi_run, "value": regression_run}
    runs["windows"] = with_windows(multi_run, tmp_path_factory.mktemp("run") / "windows")
    for name, run in runs.items():
        add_version(run, folder, TritonSettings(name=name), EngineChoice(), NullProgress())
    return folder


@pytest.fixture(scope="module")
def installation():
    try:
        return Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")


@pytest.fixture(scope="module")
def triton(repository, installation):
    with TritonServer(repository, installation=installation) as running:
        yield running


def ask(triton, model, texts, pairs=None):
    """The outputs by name, as flat lists; or the error."""
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [len(values), 1], "data": values}
        for name, values in (("text", texts), ("text_pair", pairs))
        if values is not None
    ]
    answer = httpx.post(f"{triton.url}/v2/models/{model}/infer", json={"inputs": inputs})
    found = answer.json()
    return found.get("error") or {one["name"]: one["data"] for one in found["outputs"]}


def test_a_pair_is_two_tensors(triton):
    found = ask(triton, "pair", ["rain wind", "goal"], ["sun", "goal match"])
    assert found["label"] == ["weather", "sport"]
    assert len(found["probabilities"]) == len(found["logits"]) == 6


def test_truncated_texts_are_listed_in_the_response_since_triton_25_02(triton):
    long, inputs = "rain " * 40, []
    for name, texts in (("text", ["rain", long, "sun"]), ("text_pair", ["sun", "sun", long])):
        inputs.append({"name": name, "datatype": "BYTES", "shape": [3, 1], "data": texts})
    answer = httpx.post(f"{triton.url}/v2/models/pair/infer", json={"inputs": inputs}).json()
    assert len(answer["outputs"]) == 4
    version = httpx.get(f"{triton.url}/v2").json()["version"]
    since = tuple(map(int, version.split(".")[:2])) >= (2, 55)
    assert answer.get("parameters") == ({"truncated": "1,2"} if since else None)


def test_truncated_texts_are_a_parameter_of_the_response(monkeypatch):
    """With a stand-in for Triton's module, because the installed Triton may be older."""
    stand_in = SimpleNamespace(
        Tensor=lambda name, _: name,
        InferenceResponse=lambda tensors, parameters=None: (tensors, parameters),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in)
    monkeypatch.delitem(sys.modules, "pipework.serve.triton.python_model", raising=False)
    model = importlib.import_module("pipework.serve.triton.python_model")
    task = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
    whole = OutputTensors.of(Outputs.of(np.zeros((4, 2), np.float32)), task, truncated=(0, 3))
    names = ["label", "score", "probabilities", "logits"]
    assert model._response(whole) == (names, {"truncated": "0,3"})  # noqa: SLF001
    assert model._response(whole.rows(2, 4)) == (names, {"truncated": "1"})  # noqa: SLF001
    assert model._response(whole.rows(1, 3)) == (names, None)  # noqa: SLF001


def test_a_pair_without_its_second_text_is_refused(triton):
    assert "expected 2 inputs but got 1" in ask(triton, "pair", ["rain"])


def test_a_text_without_entity_marks_is_refused(triton):
    marked = "<e1>goal</e1> and <e2>rain</e2>"
    assert ask(triton, "marked", [marked])["label"] == ["weather"]
    error = ask(triton, "marked", [marked, "goal and rain"])
    assert error.startswith("input 1: expected <e1> once, found it 0 times; mark both entities")


def test_several_labels_are_joined_by_commas(triton):
    found = ask(triton, "several", ["rain goal match", "rain"])
    assert found["label"][0].split(", ")[0] in ("sport", "weather")
    assert found["score"] == [max(found["probabilities"][:3]), max(found["probabilities"][3:])]


def test_a_regression_model_returns_a_number_and_no_label(triton):
    found = ask(triton, "value", ["rain rain", "goal"])
    assert found["label"] == ["", ""]
    assert found["score"] == found["logits"]
    assert found["score"][0] > found["score"][1]


def test_the_whole_of_a_long_text_is_read_in_windows(triton):
    text = "goal " * 28 + "rain " * 60
    truncated, whole = (ask(triton, model, [text, "sun"]) for model in ("several", "windows"))
    best = [found["label"][0].split(", ")[0] for found in (truncated, whole)]
    assert best == ["sport", "weather"]
    assert len(whole["logits"]) == 6
    assert whole["logits"][3:] == truncated["logits"][3:]


def test_a_python_with_another_numpy_is_detected_at_the_start(installation, tmp_path):
    ours = replace(installation, venv=Path(sys.prefix))
    assert np.lib.NumpyVersion(np.__version__) >= "2.0.0"
    with pytest.raises(MissingDependencyError, match="does not echo") as raised:
        TritonServer(tmp_path, installation=ours)
    assert "'numpy<2'" in raised.value.hint


@pytest.mark.usefixtures("installation")
def test_the_launcher_serves_until_a_stop_signal(repository):
    command = [sys.executable, "-m", "pipework.serve.triton.server", repository]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as process:
        line = process.stdout.readline()
        url = re.search(r"http://[\d.:]+", line)[0]
        names = ("pair", "marked", "several", "value")
        ready = [httpx.get(f"{url}/v2/models/{name}/ready").status_code for name in names]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert ready == [200] * 4
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2/health/live")
