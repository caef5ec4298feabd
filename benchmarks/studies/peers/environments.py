"""The Python environments in which compared servers run, and the versions of their packages."""

import json
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from pipework.errors import MissingDependencyError
from pipework.serve.triton.installation import Installation

PINS = Path(__file__).with_name("infinity.txt")
VERSIONS = """
import importlib.metadata, json, sys
known = {}
for name in sys.argv[1:]:
    try: known[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: pass
print(json.dumps(known))
"""
PACKAGES = (
    *("fastapi", "infinity-emb", "numpy", "onnxruntime", "openvino", "optimum"),
    *("tokenizers", "torch", "transformers", "uvicorn"),
)


class Environment(StrEnum):
    """The environment that a server runs in; OWN is the environment of this process."""

    OWN = "own"
    TRITON = "triton"
    INFINITY = "infinity"

    def python(self, infinity: Path) -> Path:
        """Return the path of its Python; `infinity` is the virtual environment of INFINITY.

        Raises:
            MissingDependencyError: it is missing; the hint is how to create it.
        """
        match self:
            case Environment.OWN:
                return Path(sys.executable)
            case Environment.TRITON:
                return (Installation.find().venv or Path(sys.prefix)) / "bin" / "python"
            case Environment.INFINITY:
                if not (infinity / "bin" / "infinity_emb").is_file():
                    message = f"expected a virtual environment with infinity in {infinity}"
                    install = f"{infinity}/bin/pip install --no-deps -r {PINS}"
                    raise MissingDependencyError(message, f"python -m venv {infinity}; {install}")
                return infinity / "bin" / "python"

    def versions(self, infinity: Path) -> dict[str, str]:
        """Return the versions of its packages that affect speed.

        Raises:
            MissingDependencyError: it is missing, or its Python does not run.
        """
        words = [str(self.python(infinity)), "-c", VERSIONS, *PACKAGES]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603  (our own program)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the Python of {self} does not run: {error}"
            raise MissingDependencyError(message, "create the environment again") from error
        return {str(name): str(version) for name, version in json.loads(done.stdout).items()}
