"""Where a tritonserver is found, and what it needs to run."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipework.errors import MissingDependencyError
from pipework.git import CHECKOUT

HOME = CHECKOUT / ".triton"  # of `make triton`


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """A tritonserver and where it finds what it needs.

    Attributes:
        binary: the program.
        backends: the folder of its backends, or None for its own default.
        venv: what its python models run in, or None for what the program finds by itself.
    """

    binary: Path
    backends: Path | None = None
    venv: Path | None = None

    @classmethod
    def find(cls, home: Path = HOME) -> "Installation":
        """Return the tritonserver on PATH, or the one that `make triton` installed.

        Raises:
            MissingDependencyError: there is neither.
        """
        on_path = shutil.which("tritonserver")
        if on_path is not None:
            return cls(binary=Path(on_path))
        root = home / "server" / "pytriton" / "tritonserver"
        binary = root / "bin" / "tritonserver"
        if not os.access(binary, os.X_OK):
            message = f"tritonserver is neither on PATH nor in {home}"
            raise MissingDependencyError(message, "make triton")
        return cls(binary=binary, backends=root / "backends", venv=home / "venv")

    def environment(self) -> dict[str, str]:
        """Return the variables to start it with.

        The process that runs a python model takes the environment whose bin comes first on PATH,
        and loads the library of that Python.

        Raises:
            MissingDependencyError: that Python does not run.
        """
        inherited = dict(os.environ)
        if self.venv is None:
            return inherited
        program = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
        command = [str(self.venv / "bin" / "python"), "-c", program]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (our own program)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the Python of Triton's models does not run: {error}"
            raise MissingDependencyError(message, "make triton") from error
        return inherited | {
            "VIRTUAL_ENV": str(self.venv),
            "PATH": os.pathsep.join((str(self.venv / "bin"), os.environ.get("PATH", ""))),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (done.stdout.strip(), os.environ.get("LD_LIBRARY_PATH")))
            ),
        }


# Its python backend reads tensors through NumPy's binary interface. Built for another version of
# NumPy than it finds, it answers with wrong numbers or dies, and says nothing before.

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
