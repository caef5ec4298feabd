"""A tritonserver is believed only after an echo.

Its python backend reads tensors through NumPy's binary interface. Built for another version of
NumPy than it finds, it answers with wrong numbers or dies, and says nothing before.
"""

import shutil
from pathlib import Path

import httpx

from pipework.errors import MissingDependencyError

SHOWN = 300  # characters of an answer that is no echo
ECHO = "pipework_echo"
ECHO_CONFIG = f"""\
name: "{ECHO}"
backend: "python"
input {{ name: "numbers" data_type: TYPE_INT64 dims: [-1] }}
input {{ name: "texts" data_type: TYPE_STRING dims: [-1] }}
output {{ name: "numbers" data_type: TYPE_INT64 dims: [-1] }}
output {{ name: "texts" data_type: TYPE_STRING dims: [-1] }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
ECHO_MODEL = """\
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        return [triton.InferenceResponse([*map(self.copied, r.inputs())]) for r in requests]

    def copied(self, tensor):
        return triton.Tensor(tensor.name(), tensor.as_numpy().copy())
"""
SAID = {
    "inputs": [
        {"name": "numbers", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]},
        {"name": "texts", "datatype": "BYTES", "shape": [2], "data": ["echo", "回声"]},
    ]
}


def write_echo(models: Path) -> Path:
    """Write the repository of the model that echoes, and return the folder of the model."""
    folder = models / ECHO
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ECHO_CONFIG)
    (folder / "1" / "model.py").write_text(ECHO_MODEL)
    return folder


def check_echo(door: httpx.Client, echo: Path) -> None:
    """Check that it echoes, and take the model away.

    Raises:
        MissingDependencyError: it does not; the message holds what came back.
    """
    said = [one["data"] for one in SAID["inputs"]]
    heard = _heard(door)
    if heard != said:
        message = f"tritonserver's python backend does not echo {said}: {heard}"
        hint = "give its Python the NumPy that it was built for, 'numpy<2': make triton"
        raise MissingDependencyError(message, hint)
    shutil.rmtree(echo)


def _heard(door: httpx.Client) -> object:
    """Return what the echo says, or in its place why it says nothing: its process may have died."""
    try:
        answer = door.post(f"/v2/models/{ECHO}/infer", json=SAID)
        door.post(f"/v2/repository/models/{ECHO}/unload", json={})
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    try:
        return [one["data"] for one in answer.json()["outputs"]]
    except (ValueError, KeyError, TypeError):
        return " ".join(answer.text.split())[:SHOWN] or "it said nothing"
