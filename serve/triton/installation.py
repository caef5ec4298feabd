"""Finds an installed tritonserver and checks that its Python backend works."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipework.errors import MissingDependencyError
from pipework.git import CHECKOUT

HOME = CHECKOUT / ".triton"  # folder that `make triton` installs into
SHOWN = 300  # characters of a wrong response that the message repeats
# Triton's Python backend reads tensors through NumPy's binary interface. If it was built for
# another version of NumPy, it returns wrong numbers or crashes, without a warning: hence this
# echo model.
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
ECHO_REQUEST = {
    "inputs": [
        {"name": "numbers", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]},
        {"name": "texts", "datatype": "BYTES", "shape": [2], "data": ["echo", "回声"]},
    ]
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """Paths of an installed tritonserver.

    Attributes:
        binary: the executable.
        backends: folder of its backends; None for its default.
        venv: virtual environment of its Python models; None for its default.
    """

    binary: Path
    backends: Path | None = None
    venv: Path | None = None

    @classmethod
    def find(cls, home: Path = HOME) -> "Installation":
        """Return the tritonserver on PATH, or the one that `make triton` installed.

        Raises:
            MissingDependencyError: neither exists.
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
        """Return the environment variables for tritonserver.

        The process of a Python model uses the environment whose bin folder is first on PATH, and
        loads the library of that Python.

        Raises:
            MissingDependencyError: that Python cannot be run.
        """
        inherited = dict(os.environ)
        if self.venv is None:
            return inherited
        program = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
        command = [str(self.venv / "bin" / "python"), "-c", program]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (our own program)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the Python of Triton's models cannot be run: {error}"
            raise MissingDependencyError(message, "make triton") from error
        return inherited | {
            "VIRTUAL_ENV": str(self.venv),
            "PATH": os.pathsep.join((str(self.venv / "bin"), os.environ.get("PATH", ""))),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (done.stdout.strip(), os.environ.get("LD_LIBRARY_PATH")))
            ),
        }


def write_echo(models: Path) -> Path:
    """Write a repository with the echo model, and return the folder of the model."""
    folder = models / ECHO
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(ECHO_CONFIG)
    (folder / "1" / "model.py").write_text(ECHO_MODEL)
    return folder


def check_echo(client: httpx.Client, echo: Path) -> None:
    """Check that the echo model returns its inputs, and remove the model.

    Raises:
        MissingDependencyError: it returns something else; the message has it.
    """
    expected = [tensor["data"] for tensor in ECHO_REQUEST["inputs"]]
    found = _echoed(client)
    if found != expected:
        message = f"tritonserver's python backend does not echo {expected}: {found}"
        hint = "its Python needs the NumPy that it was built for, 'numpy<2': make triton"
        raise MissingDependencyError(message, hint)
    shutil.rmtree(echo)


def _echoed(client: httpx.Client) -> object:
    """Return the tensors of the echo model, or an error text: its process may have crashed."""
    try:
        response = client.post(f"/v2/models/{ECHO}/infer", json=ECHO_REQUEST)
        client.post(f"/v2/repository/models/{ECHO}/unload", json={})
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    try:
        return [tensor["data"] for tensor in response.json()["outputs"]]
    except (ValueError, KeyError, TypeError):
        return " ".join(response.text.split())[:SHOWN] or "an empty response"
